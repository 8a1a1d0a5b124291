//! `longfat tcb watch` on a terminal: a pseudo-terminal whose other end this test reads and writes.

use longfat_host::Lease;
use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::{Child, ExitStatus, Stdio},
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);
const LEAVE_SCREEN: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

/// 1,000 connections: both ends of 500.
fn connections() -> Vec<TcpStream> {
    let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
    // SAFETY: reads a limit that outlives the call.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut held = Vec::new();
    for _ in 0..500 {
        held.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        held.push(listener.accept().unwrap().0);
    }
    held
}

/// A terminal with the program on it.
struct Terminal {
    screen_end: File,
    /// Kept open: the last to close it ends the terminal.
    program_end: OwnedFd,
    before: libc::termios,
    /// Columns and lines.
    size: (u16, u16),
    /// What was written since the size was set.
    written: Vec<u8>,
    child: Child,
}

impl Terminal {
    fn watching(namespace: &longfat_host::Namespace) -> Terminal {
        let (mut ours, mut theirs) = (0, 0);
        let none = std::ptr::null_mut();
        // SAFETY: writes two descriptors that outlive the call; the other pointers may be null.
        let opened = unsafe { libc::openpty(&raw mut ours, &raw mut theirs, none, none.cast(), none.cast()) };
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: just opened, and owned by nobody else.
        let (screen_end, program_end) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        // SAFETY: takes a number and flags only.
        unsafe { libc::fcntl(ours, libc::F_SETFL, libc::O_NONBLOCK) };
        let before = settings(&program_end);
        let mut command = namespace.command(env!("CARGO_BIN_EXE_longfat"));
        let end = || Stdio::from(program_end.try_clone().unwrap());
        command.args(["tcb", "watch", "--every", "100ms"]).stdin(end()).stdout(end()).stderr(end());
        let own = || {
            // SAFETY: takes numbers only. Its own session, whose terminal this is: else it hears of no change of size.
            let done = unsafe { libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 };
            if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        let mut terminal = {
            // SAFETY: `own` makes system calls that may be made between fork and exec.
            unsafe { command.pre_exec(own) };
            set_size(&screen_end, (140, 40));
            let child = command.spawn().unwrap();
            Terminal { screen_end, program_end, before, size: (140, 40), written: Vec::new(), child }
        };
        terminal.wait_for("the head line", |lines| lines[0].starts_with("1000 of 1000 connections"));
        terminal
    }

    fn read(&mut self) {
        let mut bytes = [0; 1 << 16];
        while let Ok(count @ 1..) = self.screen_end.read(&mut bytes) {
            self.written.extend(&bytes[..count]);
        }
    }

    fn wait_for(&mut self, what: &str, holds: impl Fn(&[String]) -> bool) -> Vec<String> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            self.read();
            let lines = screen(&self.written, self.size);
            if holds(&lines) {
                return lines;
            }
            assert!(Instant::now() < give_up, "waited in vain for {what}:\n{}", lines.join("\n"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn press(&mut self, keys: &str) {
        self.screen_end.write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&mut self, size: (u16, u16)) {
        self.read();
        self.written.clear();
        self.size = size;
        set_size(&self.screen_end, size);
    }

    /// Waits for the end; how it ended. The terminal must be as it was.
    fn ended(mut self) -> ExitStatus {
        let give_up = Instant::now() + PATIENCE;
        let status = loop {
            self.read();
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < give_up, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        self.read();
        let after = settings(&self.program_end);
        assert_eq!((after.c_lflag, after.c_iflag, after.c_oflag), {
            let before = &self.before;
            (before.c_lflag, before.c_iflag, before.c_oflag)
        });
        let written = String::from_utf8_lossy(&self.written);
        assert!(written.contains(LEAVE_SCREEN) && written.contains(SHOW_CURSOR), "{written:?}");
        status
    }
}

fn settings(terminal: &OwnedFd) -> libc::termios {
    // SAFETY: a termios of zeros is one; the call overwrites it, and it outlives the call.
    unsafe {
        let mut settings: libc::termios = std::mem::zeroed();
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), &raw mut settings), 0);
        settings
    }
}

fn set_size(terminal: &File, (columns, lines): (u16, u16)) {
    let size = libc::winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: reads a size that outlives the call.
    let done = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// What these bytes leave on a cleared screen: text at the places the cursor is sent to; colours are passed over.
fn screen(bytes: &[u8], (columns, lines): (u16, u16)) -> Vec<String> {
    let mut cells = vec![vec![' '; columns.into()]; lines.into()];
    let (mut line, mut column) = (0, 0);
    let text = String::from_utf8_lossy(bytes);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\x1b' {
            if let Some(cell) = cells.get_mut(line).and_then(|line: &mut Vec<char>| line.get_mut(column)) {
                *cell = letter;
            }
            column += 1;
            continue;
        }
        if letters.next() != Some('[') {
            continue;
        }
        let mut sequence = String::new();
        let last = loop {
            match letters.next() {
                Some(letter) if letter.is_ascii_alphabetic() => break letter,
                Some(letter) => sequence.push(letter),
                None => break '\0',
            }
        };
        if last == 'H' {
            let mut places = sequence.split(';').map(|number| number.parse().unwrap_or(1usize) - 1);
            (line, column) = (places.next().unwrap_or(0), places.next().unwrap_or(0));
        }
    }
    cells.into_iter().map(|line| line.into_iter().collect()).collect()
}

#[test]
fn a_thousand_connections_stay_readable_while_the_terminal_changes_its_size_and_keys_are_pressed() {
    let lease = Lease::take(&format!("watch{}", std::process::id())).unwrap();
    let namespace = lease.namespace("w").unwrap();
    let _held = namespace.run(connections).unwrap();
    let mut terminal = Terminal::watching(&namespace);
    let lines = terminal.wait_for("the table", |lines| lines[38].contains("127.0.0.1:"));
    assert!(lines[1].starts_with("dst") && lines[39].contains("q quit"), "{}", lines.join("\n"));
    for size in [(80, 12), (200, 50)] {
        terminal.resize(size);
        let last = usize::from(size.1) - 1;
        let lines = terminal.wait_for("the view in another size", |lines| {
            lines[last].contains("up/down choose") && lines[last - 1].contains("127.0.0.1:")
        });
        assert!(lines[0].starts_with("1000 of 1000 connections"), "{}", lines.join("\n"));
    }
    terminal.press("/cc nosuch*\r");
    terminal
        .wait_for("the filter", |lines| lines[0].starts_with("0 of 1000 connections  filter: cc nosuch*"));
    terminal.press("q");
    assert!(terminal.ended().success());
}

#[test]
fn sigterm_puts_the_terminal_back() {
    let lease = Lease::take(&format!("watcht{}", std::process::id())).unwrap();
    let namespace = lease.namespace("w").unwrap();
    let _held = namespace.run(connections).unwrap();
    let terminal = Terminal::watching(&namespace);
    // SAFETY: takes numbers only; the child has not been waited for, so that the pid is its own.
    unsafe { libc::kill(terminal.child.id() as i32, libc::SIGTERM) };
    assert!(terminal.ended().success());
}
