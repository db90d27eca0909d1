//! A reader of Prometheus' text format that forgives nothing.

use std::collections::BTreeMap;

/// What was read: a value for each series, `name{label="value",…}` with the labels in their order.
#[derive(Debug, Default, PartialEq)]
pub struct Scrape {
    pub series: BTreeMap<String, f64>,
    /// The type of each family.
    pub types: BTreeMap<String, String>,
    /// The label names of each family, `le` not among them.
    pub labels: BTreeMap<String, Vec<String>>,
}

impl Scrape {
    /// Panics on whatever the format does not allow.
    pub fn read(text: &str) -> Self {
        let mut scrape = Self::default();
        let mut family = String::new();
        let mut helped = String::new();
        assert!(
            text.is_empty() || text.ends_with('\n'),
            "a last line without an end"
        );
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').expect("a name and a text");
                assert!(!help.is_empty() && !help.contains('\\'), "{line}");
                assert!(!scrape.types.contains_key(name), "{name} comes twice");
                helped = name.to_owned();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a name and a type");
                assert_eq!(name, helped, "it is explained before");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                scrape.types.insert(name.to_owned(), kind.to_owned());
                family = name.to_owned();
            } else {
                scrape.sample(&family, line);
            }
        }
        scrape.check_histograms();
        scrape
    }

    fn sample(&mut self, family: &str, line: &str) {
        let kind = self
            .types
            .get(family)
            .expect("a type comes before its samples");
        let brace = line.find('{').expect("every sample has labels");
        let (name, rest) = line.split_at(brace);
        let suffix = name
            .strip_prefix(family)
            .expect("a sample among those of another name");
        let (labels, value) = labels(&rest[1..]);
        assert!(!value.contains(' '), "no time stamps: {line}");
        let number: f64 = value
            .parse()
            .unwrap_or_else(|_| panic!("no number: {line}"));
        let mut names: Vec<String> = labels.iter().map(|(name, _)| name.clone()).collect();
        match kind.as_str() {
            "counter" => {
                assert!(suffix.is_empty() && value.parse::<u64>().is_ok(), "{line}");
            }
            "gauge" => assert!(suffix.is_empty(), "{line}"),
            _ => {
                assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}");
                assert_eq!(suffix == "_bucket", names.last().unwrap() == "le", "{line}");
                names.retain(|name| name != "le");
            }
        }
        assert_eq!(names[0], "layer", "{line}");
        let known = self.labels.entry(family.to_owned());
        assert_eq!(*known.or_insert(names.clone()), names, "{line}");
        let series = format!("{name}{}", &rest[..rest.len() - value.len() - 1]);
        assert!(
            self.series.insert(series, number).is_none(),
            "twice: {line}"
        );
    }

    /// Buckets grow to the count, and there is a sum.
    fn check_histograms(&self) {
        for (series, count) in &self.series {
            let Some((name, labels)) = series.split_once("_count{") else {
                continue;
            };
            if self.types.get(name).is_none_or(|kind| kind != "histogram") {
                continue;
            }
            let labels = labels.trim_end_matches('}');
            assert!(self.series.contains_key(&format!("{name}_sum{{{labels}}}")));
            let prefix = format!("{name}_bucket{{{labels},le=\"");
            let mut buckets: Vec<(f64, f64)> = (self.series.iter())
                .filter_map(|(series, count)| {
                    let le = series.strip_prefix(&prefix)?.strip_suffix("\"}")?;
                    Some((le.parse().expect("a bound"), *count))
                })
                .collect();
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(buckets.is_sorted_by_key(|(_, count)| *count), "{buckets:?}");
            assert_eq!(buckets.last(), Some(&(f64::INFINITY, *count)));
        }
    }

    /// The series of one layer, without that label.
    pub fn of(&self, layer: &str) -> BTreeMap<String, f64> {
        let label = format!("{{layer=\"{layer}\"");
        let series = self.series.iter().filter_map(|(series, value)| {
            let (name, rest) = series.split_once(&label)?;
            let rest = rest.strip_prefix(',').unwrap_or(rest).trim_end_matches('}');
            let labels = if rest.is_empty() {
                String::new()
            } else {
                format!("{{{rest}}}")
            };
            Some((
                format!("{}{labels}", name.strip_prefix("backpressure_")?),
                *value,
            ))
        });
        series.collect()
    }
}

/// The labels behind an opening brace, as they are meant, and the value behind the closing one.
pub fn labels(text: &str) -> (Vec<(String, String)>, &str) {
    let mut labels: Vec<(String, String)> = Vec::new();
    let mut rest = text;
    loop {
        let (name, after) = rest
            .split_once("=\"")
            .expect("a label has a value in quotes");
        let first = |c: char| c.is_ascii_alphabetic() || c == '_';
        assert!(name.starts_with(first), "{text}");
        assert!(
            name.chars().all(|c| first(c) || c.is_ascii_digit()),
            "{text}"
        );
        assert!(
            labels.iter().all(|(other, _)| other != name),
            "twice: {text}"
        );
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().expect("the value ends") {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next() {
                    Some((_, '\\')) => '\\',
                    Some((_, '"')) => '"',
                    Some((_, 'n')) => '\n',
                    other => panic!("{other:?} is not escaped so: {text}"),
                }),
                (_, c) => value.push(c),
            }
        };
        labels.push((name.to_owned(), value));
        rest = &after[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    let value = rest
        .strip_prefix("} ")
        .expect("the labels end, and a value follows");
    (labels, value)
}
