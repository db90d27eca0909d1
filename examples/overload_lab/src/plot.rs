//! Small multiples as SVG: a panel for each protection, the same axes in all of them, light or
//! dark.

use std::fmt::Write;

use crate::{protection::Protection, style::STYLE};

/// A picture: panels in rows, and what the lines in them mean.
pub struct Figure {
    /// Of the file.
    pub name: &'static str,
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub panels: Vec<Panel>,
    pub legend: Vec<(Mark, String)>,
}

pub struct Axis {
    pub label: &'static str,
    pub from: f64,
    pub to: f64,
    pub log: bool,
    pub ticks: Vec<(f64, String)>,
}

pub struct Panel {
    /// Whose colour it has.
    pub protection: Protection,
    pub title: String,
    pub note: String,
    /// Its own, where panels are of different things.
    pub x: Option<Axis>,
    /// Times that are set off, and what is written there.
    pub bands: Vec<(f64, f64, String)>,
    pub series: Vec<Series>,
}

pub struct Series {
    pub mark: Mark,
    pub points: Vec<(f64, f64)>,
    /// What is shown where a pointer rests: of the whole, or of each point if there are as many.
    pub says: Vec<String>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Mark {
    Solid,
    Dashed,
    Dotted,
    /// What could be at best, or what was asked for.
    Ideal,
    /// Filled down to the axis: the noisy tenant, or one of the quiet ones.
    Noisy,
    Quiet(usize),
}

impl Axis {
    /// Where it is, from 0 to 1.
    fn at(&self, value: f64) -> f64 {
        let scale = |it: f64| if self.log { it.ln() } else { it };
        let value = value.clamp(self.from, self.to);
        (scale(value) - scale(self.from)) / (scale(self.to) - scale(self.from))
    }

    /// Seconds from the beginning.
    pub fn seconds(to: f64) -> Self {
        let step = if to > 150.0 { 60 } else { 20 };
        let ticks = (0..=to as usize).step_by(step);
        Self {
            label: "seconds",
            from: 0.0,
            to,
            log: false,
            ticks: ticks.map(|it| (it as f64, it.to_string())).collect(),
        }
    }

    /// Requests in flight.
    pub fn limit(label: &'static str) -> Self {
        let ticks = [0, 25, 50, 75, 100];
        Self {
            label,
            from: 0.0,
            to: 100.0,
            log: false,
            ticks: ticks.map(|it| (f64::from(it), it.to_string())).into(),
        }
    }

    /// A share of what the server can do.
    pub fn percent(label: &'static str, to: f64) -> Self {
        let ticks = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0];
        Self {
            label,
            from: 0.0,
            to,
            log: false,
            ticks: (ticks.into_iter().filter(|it| *it <= to))
                .map(|it| (it, format!("{:.0} %", 100.0 * it)))
                .collect(),
        }
    }
}

const WIDTH: f64 = 212.0;
const HEIGHT: f64 = 118.0;
const LEFT: f64 = 54.0;
const ABOVE: f64 = 94.0;
const COLUMN: f64 = WIDTH + 18.0;
const ROW: f64 = HEIGHT + 80.0;
const COLUMNS: usize = 4;

impl Figure {
    /// As a file of its own, or as a part of a page that has the style.
    pub fn svg(&self, alone: bool) -> String {
        let cells = self.panels.len() + 1;
        let rows = cells.div_ceil(COLUMNS) as f64;
        let columns = cells.min(COLUMNS) as f64;
        let (width, height) = (LEFT + columns * COLUMN, ABOVE + rows * ROW - 50.0);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"lab\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n"
        );
        let title = escape(&self.title);
        let (x, y) = (self.x.label, self.y.label);
        put(&mut svg, format_args!("<title>{title}</title>"));
        if alone {
            put(&mut svg, format_args!("<style>\n{STYLE}</style>"));
        }
        put(
            &mut svg,
            format_args!("<rect width=\"{width}\" height=\"{height}\" fill=\"var(--bg)\"/>"),
        );
        put(
            &mut svg,
            format_args!("<text class=\"t\" x=\"12\" y=\"24\">{title}</text>"),
        );
        put(
            &mut svg,
            format_args!("<text x=\"12\" y=\"42\">{y}, by {x}</text>"),
        );
        for cell in 0..cells {
            let left = LEFT + (cell % COLUMNS) as f64 * COLUMN;
            let top = ABOVE + (cell / COLUMNS) as f64 * ROW;
            match self.panels.get(cell) {
                Some(panel) => self.panel(&mut svg, panel, left, top, cell % COLUMNS == 0),
                None => self.legend(&mut svg, left, top),
            }
        }
        svg + "</svg>\n"
    }

    fn panel(&self, svg: &mut String, panel: &Panel, left: f64, top: f64, first: bool) {
        let (title, note) = (escape(&panel.title), escape(&panel.note));
        let colour = key(panel.protection);
        let x_axis = panel.x.as_ref().unwrap_or(&self.x);
        put(
            svg,
            format_args!("<g style=\"--c:var(--{colour})\" transform=\"translate({left} {top})\">"),
        );
        put(
            svg,
            format_args!("<text class=\"p\" y=\"-30\">{title}</text><text y=\"-16\">{note}</text>"),
        );
        for (from, to, text) in &panel.bands {
            let (from, to) = (WIDTH * x_axis.at(*from), WIDTH * x_axis.at(*to));
            let (wide, middle) = (to - from, (from + to) / 2.0);
            put(
                svg,
                format_args!(
                    "<rect class=\"b\" x=\"{from:.1}\" width=\"{wide:.1}\" height=\"{HEIGHT}\"/>"
                ),
            );
            put(
                svg,
                format_args!(
                    "<text class=\"m n\" x=\"{middle:.1}\" y=\"-4\">{}</text>",
                    escape(text)
                ),
            );
        }
        for (value, text) in &self.y.ticks {
            let y = HEIGHT * (1.0 - self.y.at(*value));
            put(
                svg,
                format_args!("<path class=\"g\" d=\"M0 {y:.1}H{WIDTH}\"/>"),
            );
            if first {
                let y = y + 3.5;
                put(
                    svg,
                    format_args!("<text class=\"r\" x=\"-6\" y=\"{y:.1}\">{text}</text>"),
                );
            }
        }
        for (value, text) in &x_axis.ticks {
            let (share, y) = (x_axis.at(*value), HEIGHT + 14.0);
            // Those at the ends stay within the panel.
            let anchor = match share {
                share if share > 0.95 => " class=\"r\"",
                share if share > 0.05 => " class=\"m\"",
                _ => "",
            };
            let x = WIDTH * share;
            put(
                svg,
                format_args!("<text{anchor} x=\"{x:.1}\" y=\"{y}\">{text}</text>"),
            );
        }
        for series in &panel.series {
            self.series(svg, x_axis, series);
        }
        put(svg, format_args!("</g>"));
    }

    fn series(&self, svg: &mut String, x_axis: &Axis, series: &Series) {
        let places: Vec<_> = (series.points.iter())
            .filter(|(_, y)| y.is_finite())
            .map(|(x, y)| (WIDTH * x_axis.at(*x), HEIGHT * (1.0 - self.y.at(*y))))
            .collect();
        let Some(((first, _), (last, _))) = places.first().zip(places.last()) else {
            return;
        };
        let mut path = path(&places);
        let each = series.says.len() == series.points.len();
        let says = match (each, series.says.first()) {
            (false, Some(text)) => format!("<title>{}</title>", escape(text)),
            _ => String::new(),
        };
        if matches!(series.mark, Mark::Noisy | Mark::Quiet(_)) {
            path += &format!("L{last:.0} {HEIGHT}L{first:.0} {HEIGHT}Z");
        }
        put(
            svg,
            format_args!("<path {} d=\"{path}\">{says}</path>", series.mark.look()),
        );
        if each {
            for ((x, y), text) in places.iter().zip(&series.says) {
                let text = escape(text);
                put(
                    svg,
                    format_args!(
                        "<circle class=\"d\" cx=\"{x:.0}\" cy=\"{y:.1}\" r=\"3\"><title>{text}</title></circle>"
                    ),
                );
            }
        }
    }

    fn legend(&self, svg: &mut String, left: f64, top: f64) {
        put(
            svg,
            format_args!("<g style=\"--c:var(--fg)\" transform=\"translate({left} {top})\">"),
        );
        for (row, (mark, text)) in self.legend.iter().enumerate() {
            let y = 8 + 20 * row;
            let (look, text) = (mark.look(), escape(text));
            let shape = match mark {
                Mark::Noisy | Mark::Quiet(_) => {
                    format!("<path {look} d=\"M0 {}h24v10h-24Z\"/>", y - 5)
                }
                _ => format!("<path {look} d=\"M0 {y}h24\"/>"),
            };
            put(
                svg,
                format_args!("{shape}<text x=\"32\" y=\"{}\">{text}</text>", y + 4),
            );
        }
        put(svg, format_args!("</g>"));
    }
}

impl Mark {
    fn look(self) -> String {
        match self {
            Self::Solid => "class=\"l\"".into(),
            Self::Dashed => "class=\"l\" stroke-dasharray=\"7 4\"".into(),
            Self::Dotted => "class=\"l\" stroke-dasharray=\"1 4\"".into(),
            Self::Ideal => "class=\"i\"".into(),
            Self::Noisy => "class=\"a\" fill=\"var(--noisy)\"".into(),
            Self::Quiet(tenant) => format!("class=\"a\" fill=\"var(--q{})\"", tenant % 2),
        }
    }
}

/// A line through these, each relative to the one before, which is shorter.
fn path(places: &[(f64, f64)]) -> String {
    let mut path = String::new();
    let mut last = (0.0, 0.0);
    for (x, y) in places {
        let place = (x.round(), (10.0 * y).round());
        let (right, down) = (place.0 - last.0, (place.1 - last.1) / 10.0);
        let command = if path.is_empty() { 'M' } else { 'l' };
        write!(path, "{command}{right} {down}").expect("a string");
        last = place;
    }
    path
}

/// The name of a protection's colour.
pub fn key(protection: Protection) -> &'static str {
    match protection {
        Protection::None => "none",
        Protection::Tower | Protection::Guess => "tower",
        Protection::Fixed => "fixed",
        Protection::Vegas => "vegas",
        Protection::CoDel => "codel",
        Protection::Wfq => "wfq",
        Protection::Gradient2 => "gradient2",
        Protection::Aimd => "aimd",
        Protection::Edge => "edge",
    }
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A line more.
fn put(svg: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(svg, "{line}").expect("a string");
}
