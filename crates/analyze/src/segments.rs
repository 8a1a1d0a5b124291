//! What an analysis reads: one packet after another, as what its headers say.

use crate::{
    capture::{
        Damage, InterfaceStatistics,
        reader::{CaptureError, CaptureReader},
    },
    decode::{Decoded, decode, usual},
    segment::Segment,
};
use std::io::Read;

/// A capture, whatever its form.
pub trait Segments {
    /// Time of the next packet, without taking it.
    ///
    /// # Errors
    /// When it cannot be read.
    fn next_time_ns(&mut self) -> Result<Option<i64>, CaptureError>;

    /// The next packet: its time, and what it is; none at the end. A TCP segment is written to `into` and numbered
    /// `index`.
    ///
    /// # Errors
    /// When nothing more can be read.
    fn next_segment(
        &mut self,
        index: u64,
        into: &mut Segment,
    ) -> Result<Option<(i64, Decoded)>, CaptureError>;

    /// The time of the next packet, if it is one of TCP as nearly all are, quickly read, and no later than `until_ns`;
    /// it is taken then. What is not, [`Segments::next_segment`] takes.
    #[inline(always)]
    fn next_usual(&mut self, index: u64, until_ns: i64, into: &mut Segment) -> Option<i64> {
        let _ = (index, until_ns, into);
        None
    }

    /// Octets read so far (after decompression).
    fn offset(&self) -> u64;

    /// Places where the file is damaged, at most a hundred of them.
    fn damages(&self) -> &[Damage];

    /// How many such places there are.
    fn damage_count(&self) -> u64;

    /// What the file says of losses at its interfaces.
    fn statistics(&self) -> Vec<InterfaceStatistics>;
}

impl<R: Read> Segments for CaptureReader<R> {
    fn next_time_ns(&mut self) -> Result<Option<i64>, CaptureError> {
        CaptureReader::next_time_ns(self)
    }

    fn next_segment(
        &mut self,
        index: u64,
        into: &mut Segment,
    ) -> Result<Option<(i64, Decoded)>, CaptureError> {
        let Some(packet) = self.next_packet()? else { return Ok(None) };
        Ok(Some((packet.time_ns, decode(&packet, index, into))))
    }

    #[inline(always)]
    fn next_usual(&mut self, index: u64, until_ns: i64, into: &mut Segment) -> Option<i64> {
        let (packet, consumed) = self.usual()?;
        let time_ns = packet.time_ns;
        if time_ns > until_ns {
            return None;
        }
        usual(packet.link, packet.data, into)?;
        (into.time_ns, into.index) = (time_ns, index);
        self.take(consumed);
        Some(time_ns)
    }

    fn offset(&self) -> u64 {
        CaptureReader::offset(self)
    }

    fn damages(&self) -> &[Damage] {
        CaptureReader::damages(self)
    }

    fn damage_count(&self) -> u64 {
        CaptureReader::damage_count(self)
    }

    fn statistics(&self) -> Vec<InterfaceStatistics> {
        CaptureReader::statistics(self)
    }
}
