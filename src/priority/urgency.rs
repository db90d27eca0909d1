//! The header `priority` of RFC 9218: a dictionary of structured fields (RFC 8941), in which `u` is the urgency.
//!
//! A dictionary with a mistake in it is no dictionary, so all of it has to be parsed to know what `u` is.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::Priority;

static PRIORITY: HeaderName = HeaderName::from_static("priority");

/// What is more urgent than the default is at least high.
fn level(urgency: i64) -> Option<Priority> {
    Some(match urgency {
        0 => Priority::Critical,
        1 | 2 => Priority::High,
        3 => Priority::Normal,
        4..=6 => Priority::Low,
        7 => Priority::Background,
        _ => return None,
    })
}

pub(super) fn write(priority: Priority) -> HeaderValue {
    HeaderValue::from_static(match priority {
        Priority::Critical => "u=0",
        Priority::High => "u=1",
        Priority::Normal => "u=3",
        Priority::Low => "u=5",
        Priority::Background => "u=7",
    })
}

/// The level of the urgency that the header states, if it does.
pub(super) fn read(headers: &HeaderMap) -> Option<Priority> {
    let mut lines = headers.get_all(&PRIORITY).iter().map(HeaderValue::as_bytes);
    let (first, second) = (lines.next()?, lines.next());
    match second {
        None => read_field(first),
        // Several lines are one list.
        Some(second) => {
            let lines: Vec<_> = [first, second].into_iter().chain(lines).collect();
            read_field(&lines.join(&b','))
        }
    }
}

fn read_field(field: &[u8]) -> Option<Priority> {
    match Parser(field).dictionary("u")? {
        Value::Integer(urgency) => level(urgency),
        Value::Other => None,
    }
}

#[derive(Clone, Copy)]
enum Value {
    Integer(i64),
    Other,
}

/// What is left to be parsed. All functions give `None` at a mistake.
struct Parser<'a>(&'a [u8]);

impl<'a> Parser<'a> {
    /// The value of this key, if there is one: the last, as there may be several.
    fn dictionary(mut self, wanted: &str) -> Option<Value> {
        let mut found = None;
        self.skip(|byte| byte == b' ');
        self.0 = self.0.trim_ascii_end();
        while !self.0.is_empty() {
            let key = self.key()?;
            let value = match self.eat(b'=') {
                true => self.item_or_inner_list()?,
                false => {
                    self.parameters()?;
                    Value::Other // true
                }
            };
            if key == wanted.as_bytes() {
                found = Some(value);
            }
            self.skip(is_optional_space);
            if self.0.is_empty() {
                break;
            }
            self.expect(b',')?;
            self.skip(is_optional_space);
            self.peek()?; // nothing may end with a comma
        }
        found
    }

    fn item_or_inner_list(&mut self) -> Option<Value> {
        if !self.eat(b'(') {
            return self.item();
        }
        loop {
            self.skip(|byte| byte == b' ');
            if self.eat(b')') {
                self.parameters()?;
                return Some(Value::Other);
            }
            self.item()?;
            matches!(self.peek()?, b' ' | b')').then_some(())?;
        }
    }

    fn item(&mut self) -> Option<Value> {
        let value = self.bare_item()?;
        self.parameters()?;
        Some(value)
    }

    fn parameters(&mut self) -> Option<()> {
        while self.eat(b';') {
            self.skip(|byte| byte == b' ');
            self.key()?;
            if self.eat(b'=') {
                self.bare_item()?;
            }
        }
        Some(())
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        matches!(self.peek()?, b'a'..=b'z' | b'*').then_some(())?;
        Some(
            self.take(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*')),
        )
    }

    fn bare_item(&mut self) -> Option<Value> {
        match self.peek()? {
            b'-' | b'0'..=b'9' => return self.number(),
            b'"' => self.string()?,
            b':' => {
                self.expect(b':')?;
                self.take(|byte| {
                    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')
                });
                self.expect(b':')?;
            }
            b'?' => {
                self.expect(b'?')?;
                matches!(self.next()?, b'0' | b'1').then_some(())?;
            }
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => _ = self.take(is_token),
            _ => return None,
        }
        Some(Value::Other)
    }

    /// An integer has at most 15 digits; a decimal has at most 12 before the point, and 1 to 3 after it.
    fn number(&mut self) -> Option<Value> {
        let sign = if self.eat(b'-') { -1 } else { 1 };
        let whole = self.take(|byte| byte.is_ascii_digit());
        if self.eat(b'.') {
            let fraction = self.take(|byte| byte.is_ascii_digit());
            let fits = (1..=12).contains(&whole.len()) && (1..=3).contains(&fraction.len());
            return fits.then_some(Value::Other);
        }
        (1..=15).contains(&whole.len()).then(|| {
            let digits = whole.iter().map(|digit| i64::from(digit - b'0'));
            Value::Integer(sign * digits.fold(0, |number, digit| 10 * number + digit))
        })
    }

    fn string(&mut self) -> Option<()> {
        self.expect(b'"')?;
        loop {
            match self.next()? {
                b'"' => return Some(()),
                b'\\' => matches!(self.next()?, b'"' | b'\\').then_some(())?,
                b' '..=b'~' => {}
                _ => return None,
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.0 = &self.0[1..];
        }
        found
    }

    fn take(&mut self, wanted: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.0.iter().position(|byte| !wanted(*byte));
        let (taken, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest;
        taken
    }

    fn skip(&mut self, unwanted: impl Fn(u8) -> bool) {
        self.take(unwanted);
    }
}

fn is_optional_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::{Priority::*, *};

    fn read_lines(lines: &[&str]) -> Option<Priority> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(&PRIORITY, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        read(&headers)
    }

    #[test]
    fn each_urgency_has_a_level() {
        let levels = [Critical, High, High, Normal, Low, Low, Low, Background];
        for (urgency, level) in levels.into_iter().enumerate() {
            assert_eq!(read_lines(&[&format!("u={urgency}")]), Some(level));
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for priority in Priority::ALL {
            let value = write(priority);
            assert_eq!(read_lines(&[value.to_str().unwrap()]), Some(priority));
        }
    }

    #[test]
    fn dictionaries() {
        for field in [
            "u=1",
            "u=1, i",
            "i, u=1",
            "i=?0,u=1",
            "u=1;x;y=2.5;z=\"a\"",
            "  u=1  ",
            "u=1\t,\ti",
            "u=7, u=1",
            "u, u=1",
            "a=(1 \"two\" three);x=4, u=1",
            "a=(), u=1",
            "a=:aGVsbG8=:, u=1",
            "a=*tok/en:x, b=\"\\\"quoted\\\\\", u=1",
            "a=-999999999999999, b=-999999999999.999, *c-._9=1, u=1",
            "u=0000001",
        ] {
            assert_eq!(read_lines(&[field]), Some(High), "{field}");
        }
        assert_eq!(read_lines(&["u=1", "i"]), Some(High));
        assert_eq!(read_lines(&["i", "u=7", "u=1"]), Some(High));
        assert_eq!(read_lines(&["u=-0"]), Some(Critical));
    }

    #[test]
    fn what_is_no_urgency_is_none() {
        for field in [
            "",
            "i",
            "i=1",
            "u",
            "u=?1",
            "u=8",
            "u=-1",
            "u=1.0",
            "u=\"1\"",
            "u=one",
            "u=:MQ==:",
            "u=(1)",
            "U=1",
            "uu=1",
            "u=999999999999999",
            "u=1, u",
            "u=1, u=8",
        ] {
            assert_eq!(read_lines(&[field]), None, "{field:?}");
        }
        assert_eq!(read(&HeaderMap::new()), None);
    }

    #[test]
    fn a_mistake_anywhere_is_a_mistake() {
        for field in [
            "u=1,",
            "u=1,,i",
            ",u=1",
            "u=1 i",
            "u =1",
            "u= 1",
            "u=",
            "u=1;",
            "u=1; ",
            "u=1;=2",
            "u=1;X",
            "u=1, I",
            "u=1, 9",
            "u=1, a=",
            "u=1, a=?",
            "u=1, a=?2",
            "u=1, a=\"",
            "u=1, a=\"\\x\"",
            "u=1, a=\"ü\"",
            "u=1, a=:é:",
            "u=1, a=:aGk=",
            "u=1, a=(1",
            "u=1, a=(1,2)",
            "u=1, a=(1\t2)",
            "u=1, a=((1))",
            "u=1, a=1.",
            "u=1, a=.5",
            "u=1, a=-",
            "u=1, a=1.2345",
            "u=1, a=1000000000000.0",
            "u=1, a=1000000000000000",
            "u=1, a=@1",
            "u=1, a={}",
            "u=1;u=2;",
            "u=01000000000000000",
            "{\"u\":1}",
            "u:1",
        ] {
            assert_eq!(read_lines(&[field]), None, "{field:?}");
        }
        assert_eq!(read_lines(&["u=1", ""]), None);
        assert_eq!(read_lines(&["u=1", "?"]), None);
    }

    proptest! {
        #[test]
        fn no_value_is_too_much_for_it(field in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = read_field(&field);
        }

        #[test]
        fn nothing_that_looks_like_one_is_either(field in "[ui=,;()?:\"\\\\. \t0-9*a-]{0,40}") {
            let _ = read_field(field.as_bytes());
        }

        #[test]
        fn the_last_urgency_counts(others in prop::collection::vec("[a-tv-z][a-z0-9]{0,3}(=[0-9]{1,3})?", 0..5), at in 0_usize..6, urgency in 0_i64..8) {
            let mut members = vec!["u=9".to_string()];
            members.extend(others);
            members.insert(1 + at.min(members.len() - 1), format!("u={urgency}"));
            prop_assert_eq!(read_field(members.join(", ").as_bytes()), level(urgency));
        }
    }
}
