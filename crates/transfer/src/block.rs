//! Hands one block after the other to a socket, with its timestamps in place.

use crate::{
    echo::{EchoLayout, HEADER_BYTES, Header, Piece},
    pattern::{Pattern, offset},
    plan::TransferPlan,
};
use nix::sys::{
    memfd::{MFdFlags, memfd_create},
    sendfile::sendfile64,
};
use std::{
    fs::File,
    io::{self, IoSlice, Write},
    net::TcpStream,
    os::fd::AsRawFd,
};

/// Most pieces of one write: below the kernel's limit of 1024 buffers.
const PIECES_MAX: usize = 512;

/// Writes a stream. A timestamp is the time at which its first byte was offered.
pub(crate) struct BlockWriter<'a> {
    socket: &'a TcpStream,
    pattern: &'a Pattern,
    layout: EchoLayout,
    /// The pattern in page cache, for sendfile.
    file: Option<File>,
    /// Someone will compare the bytes. Otherwise all payload comes from the beginning of the pattern: whole pages,
    /// which sendfile hands on in fewer pieces, and always the same ones, which stay in the cache.
    positioned: bool,
    /// The timestamp of which the socket took only a part.
    begun: Option<Header>,
}

impl<'a> BlockWriter<'a> {
    pub(crate) fn new(
        socket: &'a TcpStream,
        pattern: &'a Pattern,
        plan: &TransferPlan,
    ) -> io::Result<BlockWriter<'a>> {
        let layout = EchoLayout::new(plan.echo_every_bytes);
        let file = if plan.zero_copy { Some(page_cache(pattern)?) } else { None };
        Ok(BlockWriter { socket, pattern, layout, file, positioned: plan.verify, begun: None })
    }

    /// Offers `length` bytes (at most a block) from stream position `position`; how many the socket took.
    pub(crate) fn write(&mut self, position: u64, length: u64, now_ns: u64) -> io::Result<u64> {
        let piece = self.layout.piece_at(position, length);
        match (piece, &self.file) {
            (Piece::Payload { bytes }, Some(file)) => self.send_file(file, position, bytes),
            (Piece::Header { .. }, Some(_)) => self.write_header(piece, bytes_follow(piece, length), now_ns),
            (Piece::Payload { bytes }, None) if bytes == length => {
                let mut socket = self.socket;
                Ok(socket.write(self.payload(position, bytes))? as u64)
            }
            _ => self.write_pieces(position, length, now_ns),
        }
    }

    /// Payload for `position`.
    fn payload(&self, position: u64, bytes: u64) -> &'a [u8] {
        self.pattern.slice(if self.positioned { position } else { 0 }, bytes as usize)
    }

    fn send_file(&self, file: &File, position: u64, bytes: u64) -> io::Result<u64> {
        let mut from = if self.positioned { offset(position) as i64 } else { 0 };
        Ok(sendfile64(self.socket, file, Some(&mut from), bytes as usize)? as u64)
    }

    fn write_header(&mut self, piece: Piece, more: bool, now_ns: u64) -> io::Result<u64> {
        let Piece::Header { position_bytes, offset, bytes } = piece else { return Ok(0) };
        let header = self.stamp(position_bytes, now_ns);
        let part = &header.encode()[offset as usize..(offset + bytes) as usize];
        let flags = if more { libc::MSG_MORE } else { 0 } | libc::MSG_NOSIGNAL;
        // SAFETY: `part` is valid for its length and the socket is open.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), part.as_ptr().cast(), part.len(), flags) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        self.keep_if_begun(header, position_bytes + offset + sent as u64);
        Ok(sent as u64)
    }

    fn write_pieces(&mut self, position: u64, length: u64, now_ns: u64) -> io::Result<u64> {
        let pieces = self.pieces(position, length);
        let headers: Vec<_> = pieces
            .iter()
            .filter_map(|(_, piece)| match piece {
                Piece::Header { position_bytes, .. } => Some(self.stamp(*position_bytes, now_ns)),
                Piece::Payload { .. } => None,
            })
            .collect();
        let encoded: Vec<_> = headers.iter().map(|header| header.encode()).collect();
        let mut encoded = encoded.iter();
        let slices: Vec<_> = pieces
            .iter()
            .filter_map(|(at, piece)| match piece {
                Piece::Payload { bytes } => Some(IoSlice::new(self.payload(*at, *bytes))),
                Piece::Header { offset, bytes, .. } => {
                    encoded.next().map(|all| IoSlice::new(&all[*offset as usize..(offset + bytes) as usize]))
                }
            })
            .collect();
        let mut socket = self.socket;
        let end = position + socket.write_vectored(&slices)? as u64;
        headers.into_iter().for_each(|header| self.keep_if_begun(header, end));
        Ok(end - position)
    }

    /// The block as pieces with their positions.
    fn pieces(&self, mut position: u64, length: u64) -> Vec<(u64, Piece)> {
        let end = position + length;
        let mut pieces = Vec::new();
        while position < end && pieces.len() < PIECES_MAX {
            let piece = self.layout.piece_at(position, end - position);
            pieces.push((position, piece));
            position += piece.bytes();
        }
        pieces
    }

    /// The timestamp at `position`: the one already begun, or a new one.
    fn stamp(&self, position_bytes: u64, now_ns: u64) -> Header {
        let begun = self.begun.filter(|header| header.position_bytes == position_bytes);
        begun.unwrap_or(Header { position_bytes, time_ns: now_ns })
    }

    fn keep_if_begun(&mut self, header: Header, reached: u64) {
        let start = header.position_bytes;
        if start < reached && reached < start + HEADER_BYTES {
            self.begun = Some(header);
        }
    }
}

/// Whether payload of the same block follows a piece: then the kernel should not send it off alone.
fn bytes_follow(piece: Piece, length: u64) -> bool {
    piece.bytes() < length
}

fn page_cache(pattern: &Pattern) -> io::Result<File> {
    let descriptor = memfd_create(c"longfat-payload", MFdFlags::MFD_CLOEXEC)?;
    let mut file = File::from(descriptor);
    file.write_all(pattern.bytes())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::echo::EchoTracker;
    use std::{io::Read, net::TcpListener};

    /// Writes 300,000 bytes in odd blocks with short writes, reads them back and checks every byte.
    fn written_and_read(zero_copy: bool) {
        let plan =
            TransferPlan { zero_copy, verify: true, echo_every_bytes: Some(1031), ..TransferPlan::default() };
        let layout = EchoLayout::new(plan.echo_every_bytes);
        let pattern = Pattern::new(70_000);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut inbound, _) = listener.accept().unwrap();
        let total = 300_000u64;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut writer = BlockWriter::new(&out, &pattern, &plan).unwrap();
                let (mut position, mut calls) = (0, 0);
                while position < total {
                    calls += 1;
                    // Lengths that end inside timestamps as well as between them.
                    let length = (total - position).min([1, 7, 1031, 16, 69_999][calls % 5]);
                    position += writer.write(position, length, 1000 + calls as u64).unwrap();
                }
                out.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut bytes = Vec::new();
            inbound.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes.len() as u64, total);
            let (mut echoes, mut wrong) = (0, None);
            let mut tracker = EchoTracker::new(layout);
            tracker
                .take(&bytes, |_| echoes += 1, |at, run| wrong = wrong.or(pattern.mismatch(at, run)))
                .unwrap();
            assert_eq!((echoes, wrong), (layout.count(total), None));
        });
    }

    #[test]
    fn blocks_cut_anywhere_make_one_exact_stream() {
        written_and_read(false);
    }

    #[test]
    fn blocks_sent_from_page_cache_make_the_same_stream() {
        written_and_read(true);
    }
}
