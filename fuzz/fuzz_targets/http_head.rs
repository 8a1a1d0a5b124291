//! The head of a request to `longfat lab serve`: any bytes are read or refused, and however they come in pieces, it is
//! the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/cli/src/commands/lab/serve/head.rs"]
mod head;
use head::{HEAD_BYTES_MAX, is_local, parse};

fuzz_target!(|bytes: &[u8]| {
    let Some((cut, head)) = bytes.split_first() else { return };
    let whole = parse(head);
    let _ = is_local(Some(&String::from_utf8_lossy(head)));
    assert!(head.len() < HEAD_BYTES_MAX || whole != Ok(None), "waits for more than the longest head");
    let Ok(Some(request)) = &whole else { return };
    let texts = request.query.iter().flat_map(|(name, value)| [name, value]);
    assert!(texts.flat_map(|text| text.chars()).all(|c| !c.is_control()), "{request:?}");
    assert!(!request.path.contains('?'), "{request:?}");
    // What was sent behind it is no part of it.
    assert_eq!(parse(&[head, b"GET".as_slice()].concat()), whole);
    if head.len() <= HEAD_BYTES_MAX {
        let first = parse(&head[..head.len() * usize::from(*cut) / 256]);
        assert!(first == Ok(None) || first == whole, "{first:?} before {whole:?}");
    }
});
