//! A capture as one file, or as a ring of files that end at a size or after a time: pcapng or columns. Every file
//! stands by itself: it names its interface and ends with what was seen and lost while it was written.
//!
//! No clock: the time of a packet says when a file is over.

use super::blocks::Blocks;
pub use super::blocks::Cut;
#[cfg(feature = "tables")]
use super::{blocks::BUFFER_BYTES, columns::write::ColumnsWriter};
use crate::capture::{
    Direction, LinkType,
    write::{PcapngWriter, Totals},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    ffi::OsString,
    fs::File,
    io::{self, Seek as _, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Where to, and when to begin another file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RollSpec {
    /// The file, or, with a limit, what its numbered files begin with; `-` is standard output.
    pub path: PathBuf,
    /// A file is over when it has this many octets.
    pub most_bytes: Option<u64>,
    /// A file is over this long after its first packet.
    pub most_ns: Option<i64>,
    /// Number of files that are kept, the newest.
    pub keep: Option<usize>,
    /// What they are.
    pub form: Form,
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The octets that were kept.
    Pcapng,
    /// What the headers say, as a Parquet table.
    #[cfg(feature = "tables")]
    Columns,
}

/// What every file says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The writing program.
    pub application: String,
    /// The interface.
    pub interface: String,
    /// What its packets begin with.
    pub link: LinkType,
    /// Most octets that are kept of a packet.
    pub snap_bytes: u32,
    /// Which packets.
    pub filter: String,
}

impl RollSpec {
    /// `FILE`, or `FILE.00001` and so on when there may be several.
    pub fn path_of(&self, number: u64) -> PathBuf {
        if !self.has_several() {
            return self.path.clone();
        }
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number:05}"));
        name.into()
    }

    /// Whether there may be more than one.
    pub fn has_several(&self) -> bool {
        self.most_bytes.is_some() || self.most_ns.is_some()
    }

    /// Numbered files of this name that are there, in the order of their names; none where there is but one file.
    pub fn numbered(&self) -> Vec<PathBuf> {
        let Some(name) = self.path.file_name().filter(|_| self.has_several()) else { return Vec::new() };
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let is_number = |rest: &[u8]| rest.len() >= 5 && rest.iter().all(u8::is_ascii_digit);
        let is_of_ring = |found: &OsString| {
            let rest = found.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
            rest.and_then(|rest| rest.strip_prefix(b".")).is_some_and(is_number)
        };
        // Of a directory that may not be read, the making of each file tells.
        let entries = std::fs::read_dir(directory.unwrap_or(Path::new("."))).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name()).filter(is_of_ring);
        let mut found: Vec<_> = names.map(|name| self.path.with_file_name(name)).collect();
        found.sort();
        found
    }
}

/// Maker and remover of the files behind the first: this process, or one that has the right to.
pub trait Files: Send {
    /// Makes the file of that number, which is not there yet.
    fn create(&mut self, number: u64, path: &Path) -> io::Result<File>;
    /// Removes it.
    fn remove(&mut self, number: u64, path: &Path) -> io::Result<()>;
}

/// This process itself.
struct Own {
    /// One file may be a pipe or a device, or be there without anything in it; one of several is new.
    has_several: bool,
}

impl Files for Own {
    fn create(&mut self, _: u64, path: &Path) -> io::Result<File> {
        if self.has_several { File::create_new(path) } else { File::create(path) }
    }

    fn remove(&mut self, _: u64, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
}

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {source}; choose another place with -o")]
pub struct RollError {
    file: String,
    source: io::Error,
}

impl RollError {
    /// Whether there was no room.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(self.source.kind(), StorageFull | QuotaExceeded | FileTooLarge)
    }
}

/// Standard output. When its reader has gone, what is written is dropped: that is the end of a capture, and no failure.
pub(super) struct Piped {
    is_unread: Arc<AtomicBool>,
}

impl Piped {
    fn unless_unread<T>(&self, result: io::Result<T>, dropped: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_unread.store(true, Ordering::Relaxed);
                Ok(dropped)
            }
            result => result,
        }
    }
}

impl Write for Piped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_unread(io::stdout().write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_unread(io::stdout().flush(), ())
    }
}

/// What is written to.
pub(super) enum Target {
    Piped(Piped),
    File(File),
    /// A file that has room for so many octets.
    #[cfg(test)]
    Narrow(File, u64),
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Target::Piped(piped) => piped.write(bytes),
            Target::File(file) => file.write(bytes),
            #[cfg(test)]
            Target::Narrow(file, room) => match room.saturating_sub(file.stream_position()?) as usize {
                0 => Err(io::ErrorKind::StorageFull.into()),
                left => file.write(&bytes[..left.min(bytes.len())]),
            },
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Target::Piped(piped) => piped.flush(),
            Target::File(file) => file.flush(),
            #[cfg(test)]
            Target::Narrow(file, _) => file.flush(),
        }
    }
}

impl Target {
    /// Cuts a file behind so many octets, and goes on from there.
    pub(super) fn shorten(&mut self, bytes: u64) -> io::Result<()> {
        match self {
            Target::Piped(_) => Err(io::ErrorKind::Unsupported.into()),
            Target::File(file) => shorten(file, bytes),
            #[cfg(test)]
            Target::Narrow(file, _) => shorten(file, bytes),
        }
    }
}

fn shorten(file: &mut File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)?;
    file.seek(SeekFrom::Start(bytes)).map(drop)
}

enum Output {
    Pcapng(PcapngWriter<Blocks>),
    #[cfg(feature = "tables")]
    Columns(Box<ColumnsWriter<io::BufWriter<Target>>>),
}

impl Output {
    fn begin(to: Target, form: Form, origin: &Origin) -> io::Result<Output> {
        match form {
            Form::Pcapng => {
                let mut output = PcapngWriter::by(Blocks::new(to), &origin.application)?;
                output.filtered_interface(
                    &origin.interface,
                    origin.link,
                    origin.snap_bytes,
                    &origin.filter,
                )?;
                Ok(Output::Pcapng(output))
            }
            #[cfg(feature = "tables")]
            Form::Columns => {
                let raw = io::BufWriter::with_capacity(BUFFER_BYTES, to);
                Ok(Output::Columns(Box::new(ColumnsWriter::new(raw, origin.clone())?)))
            }
        }
    }

    #[inline]
    fn packet(&mut self, time_ns: i64, wire_bytes: u32, data: &[u8], direction: Direction) -> io::Result<()> {
        match self {
            Output::Pcapng(output) => output.packet(0, time_ns, wire_bytes, data, Some(direction)),
            #[cfg(feature = "tables")]
            Output::Columns(output) => output.packet(time_ns, wire_bytes, data, Some(direction)),
        }
    }

    fn statistics(&mut self, totals: &Totals) -> io::Result<()> {
        match self {
            Output::Pcapng(output) => output.statistics(0, totals),
            #[cfg(feature = "tables")]
            Output::Columns(output) => {
                output.statistics(totals);
                Ok(())
            }
        }
    }

    fn written_bytes(&self) -> u64 {
        match self {
            Output::Pcapng(output) => output.written_bytes(),
            #[cfg(feature = "tables")]
            Output::Columns(output) => output.written_bytes(),
        }
    }

    /// Hands on what is held back; rows of a table are held back until there are enough of them.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Pcapng(output) => output.flush(),
            #[cfg(feature = "tables")]
            Output::Columns(_) => Ok(()),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Output::Pcapng(output) => output.into_inner().flush(),
            #[cfg(feature = "tables")]
            Output::Columns(output) => output.finish()?.flush(),
        }
    }

    /// Ends a file that takes no more behind its last whole packet, and has it say what it holds. A table without its
    /// end cannot be read, and is left.
    fn cut(self, totals: &Totals) -> Cut {
        match self {
            Output::Pcapng(output) => output.into_inner().cut(statistics(totals).len(), |cut| {
                let delivered = totals.delivered.saturating_sub(cut.packets.iter().sum());
                let dropped = totals.accepted.saturating_sub(delivered);
                statistics(&Totals { delivered, dropped, ..*totals })
            }),
            #[cfg(feature = "tables")]
            Output::Columns(_) => Cut::default(),
        }
    }
}

/// The block that says what a file holds.
fn statistics(totals: &Totals) -> Vec<u8> {
    let mut block = PcapngWriter::bare(Vec::new());
    // A vector takes everything.
    let _ = block.statistics(0, totals);
    block.into_inner()
}

/// What came of a capture whose file took no more.
#[derive(Debug)]
pub struct Stopped {
    /// Why it took no more.
    pub error: RollError,
    /// Files that are there, the oldest first.
    pub files: Vec<PathBuf>,
    /// What was given to the last one, and it lacks.
    pub cut: Cut,
}

/// The file that is being written, and those before it.
pub struct Roll {
    spec: RollSpec,
    origin: Origin,
    output: Output,
    made_by: Box<dyn Files>,
    /// Files that are kept, the newest last.
    files: VecDeque<PathBuf>,
    number: u64,
    /// Time of the file's first packet.
    first_ns: Option<i64>,
    /// Since the capture began: what the caller counted, and what was written.
    totals: Totals,
    /// What the files before this one have of it.
    before: Totals,
    /// What the file said last of losses.
    said_dropped: u64,
    /// Whether this is standard output, and its reader has gone.
    is_unread: Arc<AtomicBool>,
}

impl Roll {
    /// Begins the first file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(spec: RollSpec, origin: Origin, start_ns: i64) -> Result<Roll, RollError> {
        let mut made_by = Box::new(Own { has_several: spec.has_several() });
        let is_unread = Arc::default();
        let (path, output) = open(&spec, &origin, 1, &mut *made_by, &is_unread)?;
        let begun = Totals { end_ns: start_ns, ..Totals::default() };
        Ok(Roll {
            spec,
            origin,
            output,
            made_by,
            files: VecDeque::from([path]),
            number: 1,
            first_ns: None,
            totals: begun,
            before: begun,
            said_dropped: 0,
            is_unread,
        })
    }

    /// Has others make and remove the files behind the first.
    #[must_use]
    pub fn with_files(self, made_by: Box<dyn Files>) -> Roll {
        Roll { made_by, ..self }
    }

    /// Whether nobody reads what is written to standard output any more.
    pub fn is_unread(&self) -> bool {
        self.is_unread.load(Ordering::Relaxed)
    }

    /// Appends a packet; begins another file first when this one is over.
    #[inline]
    pub fn packet(
        &mut self,
        time_ns: i64,
        wire_bytes: u32,
        data: &[u8],
        direction: Direction,
    ) -> Result<(), RollError> {
        if self.is_over(time_ns) {
            self.turn(time_ns)?;
        }
        self.first_ns.get_or_insert(time_ns);
        let written = self.output.packet(time_ns, wire_bytes, data, direction);
        written.map_err(|source| failed(self.current(), source))?;
        self.totals.delivered += 1;
        Ok(())
    }

    /// Takes down what was seen and lost so far (`start_ns` and `delivered` are known here), before the packets it
    /// covers are appended; a loss is written at once, so that even a file that is cut off tells of it.
    pub fn count(&mut self, totals: Totals) -> Result<(), RollError> {
        // What was accepted came by, even if the two were read at different times.
        let received = totals.received.max(totals.accepted);
        self.totals = Totals { delivered: self.totals.delivered, received, ..totals };
        if self.totals.dropped > self.said_dropped {
            self.said_dropped = self.totals.dropped;
            self.say(&self.totals.clone())?;
        }
        Ok(())
    }

    /// Hands on what is held back.
    pub fn flush(&mut self) -> Result<(), RollError> {
        self.output.flush().map_err(|source| failed(self.current(), source))
    }

    /// Ends the last file; the files that are there, the oldest first.
    pub fn finish(mut self) -> Result<Vec<PathBuf>, RollError> {
        self.say(&self.totals.clone())?;
        let Roll { output, files, spec, .. } = self;
        let last = files.back().unwrap_or(&spec.path);
        output.finish().map_err(|source| failed(last, source))?;
        Ok(files.into())
    }

    /// Ends the last file, also one that took no more: it then ends with a whole packet, and where there is room with
    /// what it holds. `written`: whether it took everything until now.
    ///
    /// # Errors
    /// When it did not, or takes no more now.
    pub fn end(mut self, written: Result<(), RollError>) -> Result<Vec<PathBuf>, Box<Stopped>> {
        let counted = self.say(&self.totals.clone()).and_then(|()| self.flush());
        match written.and(counted) {
            Ok(()) if matches!(self.output, Output::Pcapng(_)) => Ok(self.files.into()),
            Ok(()) => {
                let files = self.files.clone().into();
                self.finish().map_err(|error| Box::new(Stopped { error, files, cut: Cut::default() }))
            }
            Err(error) => {
                let totals = self.of_file(&self.totals);
                Err(Box::new(Stopped { error, files: self.files.into(), cut: self.output.cut(&totals) }))
            }
        }
    }

    fn is_over(&self, time_ns: i64) -> bool {
        let full = self.spec.most_bytes.is_some_and(|most| self.output.written_bytes() >= most);
        self.first_ns
            .is_some_and(|first| full || self.spec.most_ns.is_some_and(|most| time_ns - first >= most))
    }

    fn turn(&mut self, time_ns: i64) -> Result<(), RollError> {
        self.totals.end_ns = self.totals.end_ns.max(time_ns);
        let until_now = self.without_waiting();
        self.say(&until_now)?;
        // While it is the current one: it may have no room.
        self.flush()?;
        self.number += 1;
        let (path, output) =
            open(&self.spec, &self.origin, self.number, &mut *self.made_by, &self.is_unread)?;
        let over = std::mem::replace(&mut self.output, output);
        over.finish().map_err(|source| failed(self.current(), source))?;
        self.files.push_back(path);
        self.first_ns = None;
        self.before = until_now;
        self.drop_oldest()
    }

    /// The totals less what was counted and will be written to the files behind this one. Those that came by and are
    /// not waiting are a difference, which can fall from one count to the next (a packet may be counted as come by, and
    /// not yet as accepted): a file gets no less than it accepted, as long as there is as much, and all together what
    /// came by.
    fn without_waiting(&self) -> Totals {
        let (totals, before) = (self.totals, &self.before);
        let waiting = totals.accepted.saturating_sub(totals.dropped + totals.delivered);
        let accepted = totals.accepted - waiting;
        let least = before.received + accepted.saturating_sub(before.accepted);
        let received = (totals.received - waiting).max(least).min(totals.received);
        Totals { received, accepted, ..totals }
    }

    fn drop_oldest(&mut self) -> Result<(), RollError> {
        while self.spec.keep.is_some_and(|keep| self.files.len() > keep.max(1)) {
            let number = self.number + 1 - self.files.len() as u64;
            if let Some(oldest) = self.files.pop_front() {
                self.made_by.remove(number, &oldest).map_err(|source| failed(&oldest, source))?;
            }
        }
        Ok(())
    }

    /// Writes what of the totals until now is this file's.
    fn say(&mut self, now: &Totals) -> Result<(), RollError> {
        let totals = self.of_file(now);
        self.output.statistics(&totals).map_err(|source| failed(self.current(), source))
    }

    /// What of the totals until now is this file's.
    fn of_file(&self, now: &Totals) -> Totals {
        let before = &self.before;
        Totals {
            start_ns: before.end_ns,
            end_ns: now.end_ns,
            received: now.received.saturating_sub(before.received),
            accepted: now.accepted.saturating_sub(before.accepted),
            dropped: now.dropped.saturating_sub(before.dropped),
            delivered: now.delivered.saturating_sub(before.delivered),
        }
    }

    fn current(&self) -> &Path {
        self.files.back().map_or(&self.spec.path, PathBuf::as_path)
    }
}

fn open(
    spec: &RollSpec,
    origin: &Origin,
    number: u64,
    made_by: &mut dyn Files,
    is_unread: &Arc<AtomicBool>,
) -> Result<(PathBuf, Output), RollError> {
    let path = spec.path_of(number);
    let to = if path == Path::new("-") {
        Target::Piped(Piped { is_unread: Arc::clone(is_unread) })
    } else {
        Target::File(made_by.create(number, &path).map_err(|source| failed(&path, source))?)
    };
    let begun = Output::begin(to, spec.form, origin);
    begun.map_err(|source| failed(&path, source)).map(|output| (path, output))
}

fn failed(path: &Path, source: io::Error) -> RollError {
    let file = if path == Path::new("-") { "standard output".into() } else { path.display().to_string() };
    RollError { file, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::reader::CaptureReader;

    fn origin() -> Origin {
        Origin {
            application: "test".into(),
            interface: "eth7".into(),
            link: LinkType(1),
            snap_bytes: 256,
            filter: "tcp".into(),
        }
    }

    /// A ring of ten packets, a second apart, of which one is lost before the fifth and two after the eighth.
    fn written(change: impl FnOnce(&mut RollSpec)) -> (tempfile::TempDir, Vec<PathBuf>) {
        let folder = tempfile::tempdir().unwrap();
        let mut spec = RollSpec {
            path: folder.path().join("c.pcapng"),
            most_bytes: None,
            most_ns: None,
            keep: None,
            form: Form::Pcapng,
        };
        change(&mut spec);
        let mut roll = Roll::create(spec, origin(), 0).unwrap();
        for second in 0..10 {
            let time_ns = second * 1_000_000_000;
            let dropped = u64::from(second >= 5) + if second >= 8 { 2 } else { 0 };
            roll.packet(time_ns, 1500, &[second as u8; 60], Direction::Outbound).unwrap();
            let received = second as u64 + 1 + dropped;
            let totals =
                Totals { end_ns: time_ns, received, accepted: received, dropped, ..Totals::default() };
            roll.count(totals).unwrap();
        }
        let files = roll.finish().unwrap();
        (folder, files)
    }

    /// First octets of the packets, received and dropped.
    fn read(path: &Path) -> (Vec<u8>, u64, u64) {
        let mut reader = CaptureReader::new(File::open(path).unwrap(), "test").unwrap();
        let mut firsts = Vec::new();
        while let Some(packet) = reader.next_packet().unwrap() {
            assert_eq!((packet.original_bytes, packet.direction), (1500, Some(Direction::Outbound)));
            firsts.push(packet.data[0]);
        }
        assert_eq!(reader.damage_count(), 0);
        let statistics = reader.statistics();
        assert_eq!((statistics.len(), statistics[0].interface.as_str()), (1, "eth7"));
        (firsts, statistics[0].received.unwrap(), statistics[0].dropped.unwrap())
    }

    #[test]
    fn without_limits_one_file_of_the_name_given_has_everything() {
        let (folder, files) = written(|_| {});
        assert_eq!(files, [folder.path().join("c.pcapng")]);
        assert_eq!(read(&files[0]), ((0..10).collect(), 13, 3));
    }

    #[test]
    fn files_end_by_time_and_together_have_each_packet_and_loss_once() {
        let (_folder, files) = written(|spec| spec.most_ns = Some(4_000_000_000));
        assert!(files[2].to_string_lossy().ends_with("c.pcapng.00003"));
        let all: Vec<_> = files.iter().map(|path| read(path)).collect();
        assert_eq!(all[0], (vec![0, 1, 2, 3], 4, 0));
        let packets: Vec<u8> = all.iter().flat_map(|(firsts, ..)| firsts.clone()).collect();
        assert_eq!(packets, (0..10).collect::<Vec<u8>>());
        let sums = all.iter().fold((0, 0), |sum, (_, received, dropped)| (sum.0 + received, sum.1 + dropped));
        assert_eq!(sums, (13, 3));
    }

    /// Notes what it is asked for.
    struct Noting(std::sync::mpsc::Sender<(bool, u64, PathBuf)>);

    impl Files for Noting {
        fn create(&mut self, number: u64, path: &Path) -> io::Result<File> {
            self.0.send((true, number, path.to_owned())).unwrap();
            File::create(path)
        }

        fn remove(&mut self, number: u64, path: &Path) -> io::Result<()> {
            self.0.send((false, number, path.to_owned())).unwrap();
            std::fs::remove_file(path)
        }
    }

    #[test]
    fn files_behind_the_first_are_made_and_removed_by_whoever_has_the_right_to() {
        let folder = tempfile::tempdir().unwrap();
        let (noting, noted) = std::sync::mpsc::channel();
        let spec = RollSpec {
            path: folder.path().join("c.pcapng"),
            most_bytes: None,
            most_ns: Some(1),
            keep: Some(2),
            form: Form::Pcapng,
        };
        let roll = Roll::create(spec.clone(), origin(), 0).unwrap();
        let mut roll = roll.with_files(Box::new(Noting(noting)));
        for second in 0..4 {
            roll.packet(second * 1_000_000_000, 1500, &[0; 60], Direction::Outbound).unwrap();
        }
        assert_eq!(roll.finish().unwrap(), [spec.path_of(3), spec.path_of(4)]);
        let noted: Vec<_> = noted.iter().collect();
        let asked = [(true, 2), (true, 3), (false, 1), (true, 4), (false, 2)];
        assert_eq!(noted, asked.map(|(creates, number)| (creates, number, spec.path_of(number))));
    }

    #[test]
    fn a_ring_takes_the_place_of_no_file_that_is_there_and_names_those_that_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.pcapng");
        let spec = RollSpec { path, most_bytes: None, most_ns: Some(1), keep: Some(1), form: Form::Pcapng };
        assert!(spec.numbered().is_empty());
        for name in ["c.pcapng", "c.pcapng.1", "c.pcapng.0000x", "d.pcapng.00001"] {
            std::fs::write(folder.path().join(name), "another's").unwrap();
        }
        assert!(spec.numbered().is_empty());
        for number in [3, 100_000] {
            std::fs::write(spec.path_of(number), "earlier").unwrap();
        }
        assert_eq!(spec.numbered(), [spec.path_of(3), spec.path_of(100_000)]);
        assert!(RollSpec { most_ns: None, ..spec.clone() }.numbered().is_empty());
        let mut roll = Roll::create(spec.clone(), origin(), 0).unwrap();
        let mut packet = |second: i64| roll.packet(second * 1_000_000_000, 60, &[0; 60], Direction::Outbound);
        packet(0).and_then(|()| packet(1)).unwrap();
        let said = packet(2).unwrap_err().to_string();
        assert!(said.contains("c.pcapng.00003: ") && said.contains("another place with -o"), "{said}");
        assert_eq!(std::fs::read(spec.path_of(3)).unwrap(), b"earlier");
    }

    #[test]
    fn packets_that_are_counted_together_are_counted_in_the_file_they_are_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.pcapng");
        let spec = RollSpec { path, most_bytes: Some(400), most_ns: None, keep: None, form: Form::Pcapng };
        let mut roll = Roll::create(spec, origin(), 0).unwrap();
        // 40 came by, the filter meant 33 of them, and three of those found no room.
        let counted = Totals { end_ns: 1, received: 40, accepted: 33, dropped: 3, ..Totals::default() };
        roll.count(counted).unwrap();
        for number in 0..30 {
            roll.packet(number, 1500, &[0; 60], Direction::Outbound).unwrap();
        }
        let all: Vec<_> = roll.finish().unwrap().iter().map(|path| read(path)).collect();
        assert!(all.len() > 5, "{}", all.len());
        for (firsts, received, dropped) in &all {
            assert!(*received >= firsts.len() as u64 + dropped, "{} {received} {dropped}", firsts.len());
        }
        let sums = all.iter().fold((0, 0), |sum, (_, received, dropped)| (sum.0 + received, sum.1 + dropped));
        assert_eq!(sums, (40, 3));
    }

    #[test]
    fn counts_that_were_read_at_different_times_make_no_file_less_than_nothing() {
        // Received and accepted, read while packets came: the one or the other first, then both at once. Ten are
        // written behind each.
        let late_received = [(1010, 10), (1010, 1010), (1020, 1020)];
        let late_accepted = [(10, 1010), (1010, 1010), (1020, 1020)];
        for counts in [late_received, late_accepted] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("c.pcapng");
            let spec = RollSpec { path, most_bytes: None, most_ns: Some(1), keep: None, form: Form::Pcapng };
            let mut roll = Roll::create(spec, origin(), 0).unwrap();
            for (number, (received, accepted)) in (0i64..).zip(counts) {
                roll.count(Totals { end_ns: number, received, accepted, ..Totals::default() }).unwrap();
                for packet in 0..10 {
                    roll.packet(number * 10 + packet, 1500, &[0; 60], Direction::Outbound).unwrap();
                }
            }
            let all: Vec<_> = roll.finish().unwrap().iter().map(|path| read(path)).collect();
            assert_eq!(all.len(), 30);
            assert_eq!(all.iter().map(|(_, received, _)| received).sum::<u64>(), 1020, "{counts:?}");
        }
    }

    /// Packets that a file of `room` octets holds, flushed every so many; what it says was received and lost; what was
    /// cut, and how many packets were given to it.
    fn written_until(room: u64, look_every: usize) -> (Vec<u8>, u64, u64, Cut, u64) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.pcapng");
        let spec = RollSpec { path, most_bytes: None, most_ns: None, keep: None, form: Form::Pcapng };
        let mut roll = Roll::create(spec.clone(), origin(), 0).unwrap();
        let narrow = Target::Narrow(File::create(&spec.path).unwrap(), room);
        roll.output = Output::begin(narrow, Form::Pcapng, &origin()).unwrap();
        let mut given = 0;
        let mut give = |number: usize| {
            let totals = Totals { end_ns: 1, received: 200, accepted: 200, ..Totals::default() };
            roll.count(totals)?;
            let way = if number.is_multiple_of(2) { Direction::Inbound } else { Direction::Outbound };
            roll.packet(number as i64, 1500, &[number as u8; 60], way)?;
            given += 1;
            if number.is_multiple_of(look_every) { roll.flush() } else { Ok(()) }
        };
        let written = (0..200).try_for_each(&mut give);
        let stopped = roll.end(written).unwrap_err();
        assert!(stopped.error.is_full(), "{}", stopped.error);
        let length = std::fs::metadata(&spec.path).unwrap().len();
        assert!(length <= room, "{length} {room}");
        if length == 0 {
            return (Vec::new(), 0, 0, stopped.cut, given);
        }
        let mut reader = CaptureReader::new(File::open(&spec.path).unwrap(), "test").unwrap();
        let mut firsts = Vec::new();
        while let Some(packet) = reader.next_packet().unwrap() {
            firsts.push(packet.data[0]);
        }
        assert_eq!(reader.damage_count(), 0, "{room} {look_every}");
        let statistics = reader.statistics();
        let said = statistics.first().map(|one| (one.received.unwrap_or(0), one.dropped.unwrap_or(0)));
        let (received, dropped) = said.unwrap_or_default();
        (firsts, received, dropped, stopped.cut, given)
    }

    #[test]
    fn a_file_that_has_no_room_for_more_ends_with_a_whole_packet_and_what_it_holds() {
        for room in (0..3000).step_by(7).chain([9000, 15_001]) {
            for look_every in [1, 3, 1000] {
                let (firsts, received, dropped, cut, given) = written_until(room, look_every);
                let count = firsts.len() as u64;
                assert_eq!(firsts, (0..count as u8).collect::<Vec<_>>());
                let missing: u64 = cut.packets.iter().sum();
                assert_eq!(count + missing, given, "{room} {look_every}");
                assert!(cut.packets[0].abs_diff(cut.packets[1]) <= 1);
                assert_eq!(cut.wire_bytes.iter().sum::<u64>(), 1500 * missing);
                assert_eq!(cut.kept_bytes, 60 * missing);
                if room > 1000 {
                    assert_eq!((received, dropped), (200, 200 - count), "{room} {look_every}");
                    assert!(count * 108 + 600 > room, "{count} packets in {room} octets");
                }
            }
        }
    }

    #[test]
    fn files_end_by_size_and_the_oldest_are_removed() {
        let (folder, files) = written(|spec| (spec.most_bytes, spec.keep) = (Some(400), Some(2)));
        assert_eq!(files.len(), 2);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        assert_eq!(read(&files[1]).0.last(), Some(&9));
        assert!(files.iter().all(|file| std::fs::metadata(file).unwrap().len() < 800));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named_with_the_mend() {
        let spec = RollSpec {
            path: "/no/such/place".into(),
            most_bytes: None,
            most_ns: None,
            keep: None,
            form: Form::Pcapng,
        };
        let message = Roll::create(spec, origin(), 0).err().unwrap().to_string();
        assert!(message.contains("/no/such/place") && message.contains("-o"), "{message}");
    }
}
