//! Everything that was said during one run, in memory, and how it gets there: the programs' samples files, with
//! time rebased to the start of the run.

use crate::{
    lines::{self, LinesError},
    own_time::OwnTime,
    record::*,
};
use std::path::Path;

macro_rules! samples {
    ($($(#[$doc:meta])+ $variant:ident $field:ident: $row:ident, $(time $time:ident,)? by $($key:ident)+;)+) => {
        /// The records of one run, by kind.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct Samples {
            $($(#[$doc])+ pub $field: Vec<$row>,)+
        }

        impl Samples {
            /// Appends one record.
            pub fn push(&mut self, record: Record) {
                match record {
                    $(Record::$variant(row) => self.$field.push(row),)+
                }
            }

            /// Puts every kind in order (most by time): several programs wrote at once.
            pub fn sort(&mut self) {
                $(self.$field.sort_by(|a, b| ($(&a.$key,)+).cmp(&($(&b.$key,)+)));)+
            }

            /// Every record, table by table.
            pub fn into_records(self) -> impl Iterator<Item = Record> {
                std::iter::empty()$(.chain(self.$field.into_iter().map(Record::$variant)))+
            }
        }
    };
}
every_record!(samples);

impl Samples {
    /// Appends a samples file. A program that wrote none had nothing to say.
    pub fn gather(&mut self, path: &Path, time: OwnTime) -> Result<(), LinesError> {
        if !path.exists() {
            return Ok(());
        }
        lines::read(path, |mut record| {
            time.bring(&mut record);
            self.push(record);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_time::Dilation;

    #[test]
    fn files_of_several_programs_become_one_ordered_whole_that_starts_at_zero() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, times: &[i64]| {
            let path = directory.path().join(name);
            let file = lines::Lines::create(&path).unwrap();
            for time_us in times {
                file.write(&Record::Echo(EchoSample { time_us: *time_us, ..Default::default() })).unwrap();
            }
            file.flush().unwrap();
            path
        };
        let (mut samples, time) = (Samples::default(), OwnTime { start_us: 100, dilation: Dilation::NONE });
        samples.gather(&write("a", &[110, 130]), time).unwrap();
        samples.gather(&write("b", &[120]), time).unwrap();
        samples.gather(&directory.path().join("never-written"), time).unwrap();
        samples.sort();
        let times: Vec<_> = samples.echo.iter().map(|echo| echo.time_us).collect();
        assert_eq!(times, [10, 20, 30]);
        assert_eq!(samples.into_records().count(), 3);
    }
}
