//! The columns of the table, each declared once, for both ways.

use crate::{
    capture::{Direction, LATEST_NS, LinkType},
    decode::{Decoded, Protocol, Unfollowed},
    segment::{Checksum, FlowKey, Segment, option},
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, DictionaryArray, Int32Array, PrimitiveArray, RecordBatch,
    StringArray, TimestampNanosecondArray,
    cast::AsArray,
    types::{ArrowPrimitiveType, Int32Type, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type},
};
use arrow_schema::ArrowError;
use std::{collections::HashMap, hash::Hash, net::IpAddr, sync::Arc};

/// A greater length is no packet's, and would make sums overflow.
const MOST_PAYLOAD_BYTES: u32 = u32::MAX - 65_536;
/// RFC 7323, 2.3.
const MOST_WINDOW_SCALE: u8 = 14;
/// Octets of a SACK block.
const BLOCK: usize = 8;

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Row {
    pub time_ns: i64,
    pub direction: Option<Direction>,
    pub wire_bytes: u32,
    pub decoded: Decoded,
    /// What more there is to say, if there is.
    pub segment: Segment,
}

impl Row {
    fn has(&self, option: u8) -> bool {
        self.decoded == Decoded::Tcp && (option == 0 || self.segment.carries(option))
    }

    /// The flow it belongs to, and which end sent the packet (that a router found too big).
    fn flow(&self) -> Option<(FlowKey, usize)> {
        match self.decoded {
            Decoded::Tcp | Decoded::TooBig { .. } => Some((self.segment.key, self.segment.end.into())),
            Decoded::Not(_) => None,
        }
    }

    fn mtu_bytes(&self) -> Option<u32> {
        match self.decoded {
            Decoded::TooBig { mtu_bytes } => Some(mtu_bytes),
            _ => None,
        }
    }

    fn sack(&self) -> Option<Vec<u8>> {
        let blocks = &self.segment.sack[..self.segment.sack_count.into()];
        let octets =
            blocks.iter().flat_map(|(left, right)| [left.to_be_bytes(), right.to_be_bytes()].concat());
        (self.has(0) && !blocks.is_empty()).then(|| octets.collect())
    }
}

impl Row {
    /// What its checksum says, if it was kept whole.
    fn checksum(&self) -> Option<Checksum> {
        let checksum = self.segment.checksum;
        (self.decoded == Decoded::Tcp && checksum != Checksum::Unchecked).then_some(checksum)
    }
}

/// Numbers that stand in a [`Segment`] under the same name; those of an option only if it is there.
macro_rules! numbers {
    ($($name:ident: $kind:ident if $option:expr,)+) => {
        struct Numbers { $($name: PrimitiveArray<$kind>,)+ }

        impl Numbers {
            fn columns(rows: &[Row]) -> Vec<(&'static str, ArrayRef)> {
                vec![$((stringify!($name), number::<$kind>(rows, |row| row.has($option).then_some(row.segment.$name))),)+]
            }

            fn of(batch: &RecordBatch) -> Result<Numbers, String> {
                Ok(Numbers { $($name: primitive(batch, stringify!($name))?,)+ })
            }

            fn write_to(&self, at: usize, segment: &mut Segment) {
                $(segment.$name = if self.$name.is_valid(at) { self.$name.value(at) } else { 0 };)+
            }
        }
    };
}

numbers! {
    ip_id: UInt16Type if 0,
    ttl: UInt8Type if 0,
    ecn: UInt8Type if 0,
    flags: UInt16Type if 0,
    sequence: UInt32Type if 0,
    acknowledgement: UInt32Type if 0,
    window: UInt16Type if 0,
    payload_bytes: UInt32Type if 0,
    options: UInt8Type if 0,
    ts_value: UInt32Type if option::TIMESTAMPS,
    ts_echo: UInt32Type if option::TIMESTAMPS,
    mss_bytes: UInt16Type if option::MSS,
    window_scale: UInt8Type if option::WINDOW_SCALE,
}

fn number<T: ArrowPrimitiveType>(rows: &[Row], of: impl Fn(&Row) -> Option<T::Native>) -> ArrayRef {
    Arc::new(rows.iter().map(of).collect::<PrimitiveArray<T>>())
}

/// Text of few different values.
fn text<K: Copy + Eq + Hash>(
    rows: &[Row],
    of: impl Fn(&Row) -> Option<K>,
    name: impl Fn(K) -> String,
) -> Result<ArrayRef, ArrowError> {
    let (mut known, mut names) = (HashMap::new(), Vec::new());
    let mut number = |value: K| {
        *known.entry(value).or_insert_with(|| {
            names.push(name(value));
            names.len() as i32 - 1
        })
    };
    let numbers: Int32Array = rows.iter().map(|row| of(row).map(&mut number)).collect();
    Ok(Arc::new(DictionaryArray::try_new(numbers, Arc::new(StringArray::from(names)))?))
}

/// Packets as a table.
pub(super) fn batch(rows: &[Row]) -> Result<RecordBatch, ArrowError> {
    let times = TimestampNanosecondArray::from_iter_values(rows.iter().map(|row| row.time_ns));
    let outbound: BooleanArray =
        rows.iter().map(|row| row.direction.map(|d| d == Direction::Outbound)).collect();
    let end = |row: &Row, other: usize| row.flow().map(|(key, end)| (key, end ^ other));
    let address = |other: usize| {
        let address = move |row: &Row| end(row, other).map(|(key, end)| key.addresses[end]);
        text(rows, address, |bits| FlowKey { addresses: [bits; 2], ports: [0; 2] }.address(0).to_string())
    };
    let port = |other: usize| {
        number::<UInt16Type>(rows, move |row| end(row, other).map(|(key, end)| key.ports[end]))
    };
    let mut columns: Vec<(&str, ArrayRef)> = vec![
        ("time_ns", Arc::new(times.with_timezone("UTC"))),
        ("outbound", Arc::new(outbound)),
        ("wire_bytes", number::<UInt32Type>(rows, |row| Some(row.wire_bytes))),
        ("kind", text(rows, |row| Some(kind(&row.decoded)), str::to_owned)?),
        ("source", address(0)?),
        ("destination", address(1)?),
        ("source_port", port(0)),
        ("destination_port", port(1)),
    ];
    columns.extend(Numbers::columns(rows));
    columns.push(("sack", Arc::new(rows.iter().map(Row::sack).collect::<BinaryArray>())));
    columns.push(("mtu_bytes", number::<UInt32Type>(rows, Row::mtu_bytes)));
    columns.push(("checksum", text(rows, Row::checksum, |checksum| checksum.name().to_owned())?));
    let always = ["time_ns", "wire_bytes", "kind"];
    RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, column)| (name, column, !always.contains(&name))),
    )
}

fn kind(decoded: &Decoded) -> &'static str {
    match decoded {
        Decoded::Tcp => "tcp",
        Decoded::TooBig { .. } => "too_big",
        Decoded::Not(Unfollowed::Other(_)) => "other",
        Decoded::Not(Unfollowed::Truncated) => "truncated",
        Decoded::Not(Unfollowed::Fragment) => "fragment",
        Decoded::Not(Unfollowed::Malformed) => "malformed",
        Decoded::Not(Unfollowed::UnknownLink(_)) => "unknown_link",
    }
}

/// What one [`kind`] names, without its values.
fn kind_named(name: &str, link: LinkType) -> Decoded {
    let every = [
        Decoded::Tcp,
        Decoded::TooBig { mtu_bytes: 0 },
        Decoded::Not(Unfollowed::Other(Protocol::Untold)),
        Decoded::Not(Unfollowed::Truncated),
        Decoded::Not(Unfollowed::Fragment),
        Decoded::Not(Unfollowed::UnknownLink(link)),
    ];
    let found = every.into_iter().find(|one| kind(one) == name);
    found.unwrap_or(Decoded::Not(Unfollowed::Malformed))
}

/// A part of the table.
pub(super) struct Columns {
    pub rows: usize,
    time_ns: PrimitiveArray<TimestampNanosecondType>,
    kinds: Named<Decoded>,
    addresses: [Named<Option<u128>>; 2],
    ports: [PrimitiveArray<UInt16Type>; 2],
    numbers: Numbers,
    sack: BinaryArray,
    mtu_bytes: PrimitiveArray<UInt32Type>,
    /// Older tables have none.
    checksums: Option<Named<Checksum>>,
}

impl Columns {
    /// Finds what is needed, or says what is not there.
    pub fn of(batch: &RecordBatch, link: LinkType) -> Result<Columns, String> {
        let sack = column(batch, "sack")?.as_binary_opt::<i32>();
        let has_checksums = batch.column_by_name("checksum").is_some();
        let checksums = has_checksums.then(|| Named::of(batch, "checksum", Checksum::named)).transpose()?;
        Ok(Columns {
            rows: batch.num_rows(),
            time_ns: primitive(batch, "time_ns")?,
            kinds: Named::of(batch, "kind", |name| kind_named(name, link))?,
            addresses: [Named::of(batch, "source", address)?, Named::of(batch, "destination", address)?],
            ports: [primitive(batch, "source_port")?, primitive(batch, "destination_port")?],
            numbers: Numbers::of(batch)?,
            sack: sack.ok_or("the column 'sack' is not of octets")?.clone(),
            mtu_bytes: primitive(batch, "mtu_bytes")?,
            checksums,
        })
    }

    pub fn time_ns(&self, at: usize) -> i64 {
        self.time_ns.value(at).clamp(0, LATEST_NS)
    }

    /// What the packet at a place is.
    pub fn decoded(&self, at: usize, index: u64, into: &mut Segment) -> Decoded {
        let decoded = self.kinds.get(at).unwrap_or(Decoded::Not(Unfollowed::Malformed));
        if let Decoded::Not(_) = decoded {
            return decoded;
        }
        let Some(flow) = self.flow(at) else { return Decoded::Not(Unfollowed::Malformed) };
        (into.key, into.end) = flow;
        if decoded == Decoded::Tcp {
            (into.time_ns, into.index) = (self.time_ns(at), index);
            self.write_segment(at, into);
            return decoded;
        }
        Decoded::TooBig { mtu_bytes: if self.mtu_bytes.is_valid(at) { self.mtu_bytes.value(at) } else { 0 } }
    }

    fn write_segment(&self, at: usize, into: &mut Segment) {
        self.numbers.write_to(at, into);
        into.checksum = self.checksums.as_ref().and_then(|named| named.get(at)).unwrap_or_default();
        into.payload_bytes = into.payload_bytes.min(MOST_PAYLOAD_BYTES);
        into.window_scale = into.window_scale.min(MOST_WINDOW_SCALE);
        let blocks = if self.sack.is_valid(at) { self.sack.value(at) } else { &[] };
        into.sack_count = (blocks.len() / BLOCK).min(into.sack.len()) as u8;
        for (block, octets) in into.sack.iter_mut().zip(blocks.chunks_exact(BLOCK)) {
            let edge =
                |at: usize| u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
            *block = (edge(0), edge(4));
        }
    }

    fn flow(&self, at: usize) -> Option<(FlowKey, u8)> {
        let end = |which: usize| {
            let port = self.ports[which].is_valid(at).then(|| self.ports[which].value(at))?;
            Some((self.addresses[which].get(at)??, port))
        };
        Some(FlowKey::of(end(0)?, end(1)?))
    }
}

fn address(text: &str) -> Option<u128> {
    Some(match text.parse().ok()? {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    })
}

/// A column of text, whose values are looked at once.
struct Named<T> {
    numbers: Int32Array,
    values: Vec<T>,
}

impl<T: Copy> Named<T> {
    fn of(batch: &RecordBatch, name: &str, meaning: impl Fn(&str) -> T) -> Result<Named<T>, String> {
        let found = column(batch, name)?.as_dictionary_opt::<Int32Type>();
        let texts = found
            .and_then(|dictionary| Some((dictionary.keys(), dictionary.values().as_string_opt::<i32>()?)));
        let (numbers, texts) =
            texts.ok_or_else(|| format!("the column '{name}' is not a dictionary of text"))?;
        let values = (0..texts.len()).map(|at| meaning(texts.value(at))).collect();
        Ok(Named { numbers: numbers.clone(), values })
    }

    fn get(&self, at: usize) -> Option<T> {
        let number = self.numbers.is_valid(at).then(|| self.numbers.value(at))?;
        self.values.get(usize::try_from(number).ok()?).copied()
    }
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, String> {
    batch.column_by_name(name).ok_or_else(|| format!("there is no column '{name}'"))
}

fn primitive<T: ArrowPrimitiveType>(batch: &RecordBatch, name: &str) -> Result<PrimitiveArray<T>, String> {
    let found = column(batch, name)?.as_primitive_opt::<T>().cloned();
    found.ok_or_else(|| format!("the column '{name}' is not of type {}", T::DATA_TYPE))
}
