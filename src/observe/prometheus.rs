//! The text format of Prometheus, version 0.0.4.

use std::fmt::{self, Display, Write};

use super::{
    metrics::Watched,
    names::{FAMILIES, Kind},
    samples::{Sample, Samples, Value},
};
use crate::{Waits, sync::Arc};

/// All samples of a name have to be together, after what it is.
pub(super) fn text(layers: &[(Arc<Watched>, Samples)]) -> String {
    let mut text = String::new();
    for family in FAMILIES {
        let mut described = false;
        for (layer, samples) in layers {
            let of_family = |sample: &&Sample| std::ptr::eq(sample.family, *family);
            for sample in samples.0.iter().filter(of_family) {
                if !std::mem::replace(&mut described, true) {
                    let kind = match family.kind {
                        Kind::Counter => "counter",
                        Kind::Gauge => "gauge",
                        Kind::Histogram => "histogram",
                    };
                    let (name, help) = (family.name, family.help);
                    put(&mut text, format_args!("# HELP {name} {help}\n"));
                    put(&mut text, format_args!("# TYPE {name} {kind}\n"));
                }
                sample.write(&layer.name, &mut text);
            }
        }
    }
    text
}

fn put(text: &mut String, what: fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a String takes everything");
}

impl Sample {
    fn write(&self, layer: &str, text: &mut String) {
        let name = self.family.name;
        let layer = Escaped(layer);
        let second = Second(self.family.label.zip(self.label));
        match &self.value {
            Value::Count(count) => {
                put(
                    text,
                    format_args!("{name}{{layer=\"{layer}\"{second}}} {count}\n"),
                );
            }
            Value::Level(level) => {
                let level = Number(*level);
                put(
                    text,
                    format_args!("{name}{{layer=\"{layer}\"{second}}} {level}\n"),
                );
            }
            Value::Waits(waits) => write_waits(name, layer, waits, text),
        }
    }
}

fn write_waits(name: &str, layer: Escaped<'_>, waits: &Waits, text: &mut String) {
    let mut count = 0;
    let bounds = Waits::BOUNDS.iter().map(|bound| bound.as_secs_f64());
    for (bound, more) in bounds.chain([f64::INFINITY]).zip(waits.buckets) {
        count += more;
        let le = Number(bound);
        put(
            text,
            format_args!("{name}_bucket{{layer=\"{layer}\",le=\"{le}\"}} {count}\n"),
        );
    }
    let sum = Number(waits.sum.as_secs_f64());
    put(
        text,
        format_args!("{name}_sum{{layer=\"{layer}\"}} {sum}\n"),
    );
    put(
        text,
        format_args!("{name}_count{{layer=\"{layer}\"}} {count}\n"),
    );
}

/// The second label, if there is one. Both its parts are our own words.
struct Second(Option<(&'static str, &'static str)>);

impl Display for Second {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((label, value)) => write!(f, ",{label}=\"{value}\""),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Copy)]
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}

struct Number(f64);

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            number => number.fmt(f), // `NaN` is what both call it
        }
    }
}
