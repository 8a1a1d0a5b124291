//! One packet after another from any source of octets, with what is damaged reported and passed over.

use super::{
    Damage, InterfaceStatistics, Located, MAX_RECORD_BYTES, Packet, Step, pcap::Pcap, pcapng::Pcapng,
};
use std::io::Read;

/// Octets asked of the source at once: large against a system call, small against a cache.
const CHUNK_BYTES: usize = 256 * 1024;
/// Places of damage that are told of one by one; more are only counted.
const MAX_DAMAGES: usize = 100;

/// Why nothing can be read.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The source.
    #[error("{file}: {source}")]
    Io {
        /// Which file.
        file: String,
        /// What the kernel, or the decompression, said.
        source: std::io::Error,
    },
    /// Not a capture.
    #[error("{0} is neither pcap nor pcapng (nor one of them in gzip or zstd); give a capture file")]
    Unknown(String),
    /// The file is of another format, whose name is known.
    #[error("{file} is {format}; {mend}")]
    Foreign {
        /// Which file.
        file: String,
        /// What it is.
        format: &'static str,
        /// What makes it readable.
        mend: &'static str,
    },
    /// Not a capture in columns, or one without its end.
    #[error("{file}: {what}")]
    Columns {
        /// Which file.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// The file holds nothing.
    #[error("{0} is empty; give a capture file")]
    Empty(String),
}

/// First octets of formats that are not read, their names, and what makes them readable.
const FOREIGN: [(&[u8], &str, &str); 12] = [
    (b"\xfd7zXZ\0", "compressed with xz", "unpack it: xz -dc FILE | longfat analyze -"),
    (b"BZh", "compressed with bzip2", "unpack it: bzip2 -dc FILE | longfat analyze -"),
    (b"\x04\x22\x4d\x18", "compressed with lz4", "unpack it: lz4 -dc FILE | longfat analyze -"),
    (b"\x1f\x9d", "compressed with compress", "unpack it: gzip -dc FILE | longfat analyze -"),
    (b"PK\x03\x04", "a zip archive", "unpack it: unzip -p FILE | longfat analyze -"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it: 7z x -so FILE | longfat analyze -"),
    (b"snoop\0\0\0", "a snoop capture", EDITCAP),
    (b"GMBU", "a capture of Microsoft Network Monitor", EDITCAP),
    (b"RTSS", "a capture of Microsoft Network Monitor 1", EDITCAP),
    (b"TRSNIFF data    \x1a", "a capture of NetXray or Sniffer", EDITCAP),
    (b"\x1c\x00\x01\xac", "a capture of IxVeriWave or Ixia", EDITCAP),
    (b"\x7fver", "a capture of AiroPeek or OmniPeek", EDITCAP),
];
const EDITCAP: &str = "make a pcapng of it: editcap -F pcapng FILE NEW";

/// Name of a format that is not read, and what makes it readable.
fn foreign(beginning: &[u8]) -> Option<(&'static str, &'static str)> {
    let by_magic = FOREIGN.iter().find(|(magic, ..)| beginning.starts_with(magic));
    let by_record = || is_erf(beginning).then_some(("likely an ERF capture", EDITCAP));
    by_magic.map(|&(_, format, mend)| (format, mend)).or_else(by_record)
}

/// ERF has no magic number: whether the first record's time (32.32 bits, the low octets first), type and lengths can be
/// those of a packet.
fn is_erf(beginning: &[u8]) -> bool {
    const YEARS_1990_TO_2100: std::ops::Range<u32> = 631_152_000..4_102_444_800;
    const LARGEST_TYPE: u8 = 48;
    const HEADER_BYTES: u16 = 16;
    let Some(&[_, _, _, _, a, b, c, d, kind, _, long, short, _, _, wide, narrow]) =
        beginning.first_chunk::<16>()
    else {
        return false;
    };
    let (record, wire) = (u16::from_be_bytes([long, short]), u16::from_be_bytes([wide, narrow]));
    let is_text = beginning[..16].iter().all(|octet| octet.is_ascii_graphic() || octet.is_ascii_whitespace());
    !is_text
        && YEARS_1990_TO_2100.contains(&u32::from_le_bytes([a, b, c, d]))
        && (1..=LARGEST_TYPE).contains(&(kind & 0x7f))
        && record > HEADER_BYTES
        && wire > 0
        && record <= wire.saturating_add(4 * HEADER_BYTES)
}

#[derive(Debug)]
enum Format {
    Pcap(Pcap),
    Pcapng(Pcapng),
}

impl Format {
    #[inline]
    fn step(&mut self, data: &[u8]) -> Step {
        match self {
            Format::Pcap(format) => format.step(data),
            Format::Pcapng(format) => format.step(data),
        }
    }

    fn plausible(&self, data: &[u8], at_end: bool) -> bool {
        match self {
            Format::Pcap(format) => format.plausible(data, at_end),
            Format::Pcapng(format) => format.plausible(data),
        }
    }

    /// Blocks of pcapng are aligned, records of pcap are not.
    fn stride(&self) -> usize {
        if matches!(self, Format::Pcap(_)) { 1 } else { 4 }
    }
}

/// Reads a capture.
pub struct CaptureReader<R> {
    source: R,
    file: String,
    format: Format,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset in the file of `buffer[0]`.
    base: u64,
    at_end: bool,
    /// The next packet, when it was looked for already; the buffer stays as it is meanwhile.
    ahead: Option<Located>,
    damages: Vec<Damage>,
    damage_count: u64,
}

impl<R: Read> CaptureReader<R> {
    /// Reads the beginning; `file` is the name used in messages.
    pub fn new(source: R, file: &str) -> Result<CaptureReader<R>, CaptureError> {
        let mut reader = CaptureReader {
            source,
            file: file.to_owned(),
            format: Format::Pcapng(Pcapng::default()),
            buffer: vec![0; CHUNK_BYTES],
            start: 0,
            end: 0,
            base: 0,
            at_end: false,
            ahead: None,
            damages: Vec::new(),
            damage_count: 0,
        };
        while reader.end < 24 && reader.fill()? {}
        let beginning = &reader.buffer[..reader.end];
        if let Some((pcap, header)) = Pcap::open(beginning) {
            reader.format = Format::Pcap(pcap);
            reader.start = header;
        } else if beginning.is_empty() {
            return Err(CaptureError::Empty(reader.file));
        } else if !Pcapng::recognises(beginning) {
            return Err(match foreign(beginning) {
                Some((format, mend)) => CaptureError::Foreign { file: reader.file, format, mend },
                None => CaptureError::Unknown(reader.file),
            });
        }
        Ok(reader)
    }

    /// The next packet, or none at the end.
    pub fn next_packet(&mut self) -> Result<Option<Packet<'_>>, CaptureError> {
        let Some(at) = self.next_located()? else { return Ok(None) };
        Ok(Some(Packet {
            time_ns: at.time_ns,
            original_bytes: at.original_bytes,
            data: &self.buffer[at.start..at.start + at.length],
            link: at.link,
            direction: at.direction,
        }))
    }

    /// The next packet, and its length in the file, where it is as nearly all are, and all of it is here; it is not
    /// taken.
    #[inline(always)]
    pub(crate) fn usual(&mut self) -> Option<(Packet<'_>, usize)> {
        let Format::Pcap(format) = &mut self.format else { return None };
        if self.ahead.is_some() {
            return None;
        }
        format.usual(self.buffer.get(self.start..self.end)?)
    }

    /// Takes so many octets of the file.
    #[inline(always)]
    pub(crate) fn take(&mut self, consumed: usize) {
        self.start += consumed;
    }

    #[inline(never)]
    fn next_located(&mut self) -> Result<Option<Located>, CaptureError> {
        match self.ahead.take() {
            None => self.locate(),
            ahead => Ok(ahead),
        }
    }

    /// Time of the next packet, without taking it.
    pub fn next_time_ns(&mut self) -> Result<Option<i64>, CaptureError> {
        if self.ahead.is_none() {
            self.ahead = self.locate()?;
        }
        Ok(self.ahead.as_ref().map(|at| at.time_ns))
    }

    /// Places where the file is damaged, at most a hundred of them.
    pub fn damages(&self) -> &[Damage] {
        &self.damages
    }

    /// How many such places there are.
    pub fn damage_count(&self) -> u64 {
        self.damage_count
    }

    /// What the file says of losses at its interfaces.
    pub fn statistics(&self) -> Vec<InterfaceStatistics> {
        match &self.format {
            Format::Pcap(_) => Vec::new(),
            Format::Pcapng(format) => format.statistics(),
        }
    }

    /// Octets read so far (after decompression).
    pub fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    #[inline]
    fn locate(&mut self) -> Result<Option<Located>, CaptureError> {
        loop {
            match self.format.step(&self.buffer[self.start..self.end]) {
                Step::Packet { mut at, consumed } => {
                    at.start += self.start;
                    self.start += consumed;
                    return Ok(Some(at));
                }
                Step::Skip { consumed } => self.start += consumed,
                Step::Need(length) => {
                    if !self.more(length)? {
                        if self.start == self.end {
                            return Ok(None);
                        }
                        self.pass_over("the file ends within a record".into())?;
                    }
                }
                Step::Damaged(what) => self.pass_over(what)?,
            }
        }
    }

    /// Looks for the next record behind what cannot be one.
    fn pass_over(&mut self, what: String) -> Result<(), CaptureError> {
        let from = self.offset();
        let stride = self.format.stride();
        self.start += stride.min(self.end - self.start);
        loop {
            // A record is only believed together with what follows it.
            let _ = self.more(2 * MAX_RECORD_BYTES)?;
            let reach = self.end.saturating_sub(self.start);
            let settled = if self.at_end { reach } else { reach.saturating_sub(MAX_RECORD_BYTES + 64) };
            let found = (0..settled)
                .step_by(stride)
                .find(|skip| self.format.plausible(&self.buffer[self.start + skip..self.end], self.at_end));
            self.start += found.unwrap_or(settled.next_multiple_of(stride).min(reach));
            if found.is_some() || (self.at_end && self.start >= self.end) {
                self.report(from, what, self.offset() - from);
                return Ok(());
            }
            if self.at_end {
                self.start = self.end;
            }
        }
    }

    fn report(&mut self, offset: u64, what: String, skipped_bytes: u64) {
        self.damage_count += 1;
        if self.damages.len() < MAX_DAMAGES {
            self.damages.push(Damage { file: self.file.clone(), offset, what, skipped_bytes });
        }
    }

    /// Reads until `length` octets are there; says whether they are.
    #[cold]
    fn more(&mut self, length: usize) -> Result<bool, CaptureError> {
        while self.end - self.start < length {
            if !self.fill()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes room for more behind what is not taken yet. That is moved only where as much was taken: moving costs no
    /// more than reading did, however little is taken at a time.
    fn make_room(&mut self) {
        if 2 * self.start < self.buffer.len() {
            return self.buffer.resize(self.buffer.len() * 2, 0);
        }
        self.buffer.copy_within(self.start..self.end, 0);
        self.base += self.start as u64;
        self.end -= self.start;
        self.start = 0;
    }

    /// Reads once more; says whether anything came.
    fn fill(&mut self) -> Result<bool, CaptureError> {
        if self.at_end {
            return Ok(false);
        }
        if self.end == self.buffer.len() {
            self.make_room();
        }
        let read = loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        match read {
            Ok(0) => self.at_end = true,
            Ok(count) => self.end += count,
            // What came before a broken compressed stream is still good.
            Err(error) if self.base + self.end as u64 > 0 => {
                let offset = self.base + self.end as u64;
                self.report(offset, format!("nothing more can be read: {error}"), 0);
                self.at_end = true;
            }
            Err(source) => return Err(CaptureError::Io { file: self.file.clone(), source }),
        }
        Ok(!self.at_end)
    }
}
