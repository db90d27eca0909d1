//! Numbers that others have written in headers.

/// Digits alone; too many of them are a great number.
pub(crate) fn digits(digits: &[u8]) -> Option<u64> {
    let mut digits = digits.iter().peekable();
    digits.peek()?;
    digits.try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        Some(number.saturating_mul(10).saturating_add(digit))
    })
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_digits_is_a_number() {
        for (text, number) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", Some(u64::MAX)),
            ("", None),
            ("+1", None),
            ("-1", None),
            (" 1", None),
            ("1.0", None),
            ("١", None),
        ] {
            assert_eq!(digits(text.as_bytes()), number, "{text:?}");
        }
    }
}
