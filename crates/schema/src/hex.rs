//! Octets as hexadecimal digits, two each, and back.

/// Lower-case digits of octets.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
        .collect()
}

/// Octets of digits, of either case; `None` where anything else stands there, or half an octet.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let octet = |[high, low]: &[u8; 2]| Some((digit(*high)? << 4 | digit(*low)?) as u8);
    if rest.is_empty() { pairs.iter().map(octet).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn octets_come_back_from_digits_of_either_case(bytes: Vec<u8>) {
            let text = to_hex(&bytes);
            prop_assert_eq!(from_hex(&text), Some(bytes.clone()));
            prop_assert_eq!(from_hex(&text.to_uppercase()), Some(bytes));
        }

        #[test]
        fn no_text_makes_it_fail(text: String) {
            let _ = from_hex(&text);
        }
    }

    #[test]
    fn digits_are_those_of_any_other_program() {
        assert_eq!(to_hex(&[0x00, 0x0f, 0xf0, 0xff, 0x7b]), "000ff0ff7b");
    }

    #[test]
    fn half_an_octet_a_sign_or_a_letter_of_another_script_is_refused() {
        for wrong in ["0", "0ff", "+f", "0x", "é", "٠٠", " 0"] {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
    }
}
