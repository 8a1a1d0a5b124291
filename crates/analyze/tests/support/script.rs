//! A capture written as a script, a packet a line: when, whose, what.
//!
//! ```text
//! 0     > S  win 65535 mss 1460 ws 7 sackok     the client's SYN; times are milliseconds
//! +20   < SA win 65535 mss 1460 ws 7 sackok     20 ms later
//! +0.01 > A                                     numbers count from 0 behind the SYNs
//! +5    > A  seq 0 len 1448 ts 7/8 id 9 ttl 64
//! +20   < A  ack 1448 win 0 sack 2896-4344
//! ```

use super::{Sum, Tcp, Trace};
use longfat_analyze::segment::flag;

const FLAGS: [(char, u16); 9] = [
    ('S', flag::SYN),
    ('A', flag::ACK),
    ('F', flag::FIN),
    ('R', flag::RST),
    ('P', flag::PSH),
    ('E', flag::ECE),
    ('W', flag::CWR),
    ('N', flag::AE),
    ('-', 0),
];

fn sum(word: &str) -> Sum {
    match word {
        "right" => Sum::Right,
        "partial" => Sum::Partial,
        "other" => Sum::Other,
        word => panic!("no checksum is {word}"),
    }
}

fn line(text: &str, last_ns: i64) -> (i64, Tcp) {
    let words: Vec<&str> = text.split_whitespace().collect();
    let milliseconds: f64 = words[0].parse().expect(text);
    let since = if words[0].starts_with('+') { last_ns } else { 0 };
    let flags = words[2].chars().map(|c| FLAGS.iter().find(|(name, _)| *name == c).expect(text).1).sum();
    let mut tcp = if words[1] == ">" { Tcp::client(flags, 0, 0) } else { Tcp::server(flags, 0, 0) };
    if flags & flag::SYN != 0 {
        tcp.seq = u32::MAX;
    }
    let mut rest = words[3..].iter();
    while let Some(word) = rest.next() {
        let mut value = || *rest.next().expect(text);
        let pair = |value: &str, by: char| {
            let (low, high) = value.split_once(by).expect(text);
            (low.parse().expect(text), high.parse().expect(text))
        };
        tcp = match *word {
            "seq" => Tcp { seq: value().parse().expect(text), ..tcp },
            "ack" => Tcp { ack: value().parse().expect(text), ..tcp },
            "len" => tcp.payload(value().parse().expect(text)),
            "win" => tcp.window(value().parse().expect(text)),
            "ttl" => tcp.ttl(value().parse().expect(text)),
            "id" => tcp.ip_id(value().parse().expect(text)),
            "ecn" => Tcp { ecn: value().parse().expect(text), ..tcp },
            "sack" => tcp.sack(&[pair(value(), '-')]),
            "ts" => {
                let (own, echo) = pair(value(), '/');
                tcp.timestamps(own, echo)
            }
            "mss" => tcp.option(&[2, 4], &value().parse::<u16>().expect(text).to_be_bytes()),
            "ws" => tcp.option(&[1, 3, 3], &[value().parse().expect(text)]),
            "sum" => Tcp { sum: sum(value()), ..tcp },
            "sackok" => tcp.option(&[1, 1, 4, 2], &[]),
            word => panic!("{word} in {text}"),
        };
    }
    (since + (milliseconds * 1e6) as i64, tcp)
}

impl Trace {
    /// Adds the packets of a script.
    pub fn script(&mut self, text: &str) -> &mut Trace {
        for text in text.lines().map(str::trim).filter(|text| !text.is_empty()) {
            let last_ns = self.packets.last().map_or(0, |(time_ns, _)| *time_ns);
            let (time_ns, tcp) = line(text, last_ns);
            self.push(time_ns, tcp);
        }
        self
    }
}

/// The capture of a script.
pub fn script(text: &str) -> Trace {
    let mut trace = Trace::default();
    trace.script(text);
    trace
}
