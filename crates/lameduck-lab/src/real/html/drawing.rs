//! SVG, by hand: shapes named by class, so that the page's style alone knows colours.

use std::fmt::{Display, Write};

use super::text::{Page, escape};

/// Everything is drawn on this width, whatever the page's is.
pub(super) const WIDTH: f64 = 1_000.0;
/// Where the drawing begins, right of the names.
pub(super) const LEFT: f64 = 128.0;
/// Where it ends.
pub(super) const RIGHT: f64 = 984.0;

/// A drawing that grows.
pub(super) struct Drawing {
    shapes: String,
}

/// Where a text is held.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Drawing {
    pub(super) const fn new() -> Self {
        let shapes = String::new();
        Self { shapes }
    }

    /// A box, with a text for whoever points at it.
    pub(super) fn rect(
        &mut self,
        class: &str,
        (x, y): (f64, f64),
        (w, h): (f64, f64),
        title: &str,
    ) {
        let title = if title.is_empty() {
            "/>".to_owned()
        } else {
            format!("><title>{}</title></rect>", escape(title))
        };
        self.write(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\"{title}\n"
        ));
    }

    pub(super) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.write(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
        ));
    }

    pub(super) fn circle(&mut self, class: &str, (x, y): (f64, f64), r: f64, title: &str) {
        let title = escape(title);
        self.write(format_args!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r:.1}\"><title>{title}</title></circle>\n"
        ));
    }

    pub(super) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.write(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n"
        ));
    }

    /// A line through points; a gap where there is none.
    pub(super) fn path(&mut self, class: &str, points: impl Iterator<Item = Option<(f64, f64)>>) {
        let mut path = String::new();
        let mut is_drawn = false;
        for point in points {
            if let Some((x, y)) = point {
                let letter = if is_drawn { 'L' } else { 'M' };
                write!(path, "{letter}{x:.1} {y:.1}").expect("writing to a String cannot fail");
            }
            is_drawn = point.is_some();
        }
        self.write(format_args!("<path class=\"{class}\" d=\"{path}\"/>\n"));
    }

    /// The area between a base line and steps of equal width.
    pub(super) fn area(&mut self, class: &str, base: f64, steps: &[(f64, f64)], width: f64) {
        let Some((first, _)) = steps.first() else {
            return;
        };
        let mut path = format!("M{first:.1} {base:.1}");
        let mut last = *first;
        for (x, y) in steps {
            last = (x + width).min(RIGHT);
            write!(path, "L{x:.1} {y:.1}L{last:.1} {y:.1}")
                .expect("writing to a String cannot fail");
        }
        write!(path, "L{last:.1} {base:.1}Z").expect("writing to a String cannot fail");
        self.write(format_args!("<path class=\"{class}\" d=\"{path}\"/>\n"));
    }

    /// Puts the drawing on the page; `label` says what it shows to whoever does not see it.
    pub(super) fn put(self, page: &mut Page, class: &str, height: f64, label: &str) {
        let label = escape(label);
        page.raw(&format!(
            "<div class=\"wide\"><svg class=\"{class}\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" role=\"img\" \
             aria-label=\"{label}\">\n{}</svg></div>\n",
            self.shapes
        ));
    }

    fn write(&mut self, what: impl Display) {
        write!(self.shapes, "{what}").expect("writing to a String cannot fail");
    }
}

/// A share of the drawing's width as a place on it.
pub(super) fn across(share: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * share.clamp(0.0, 1.0)
}

/// The smallest of 1, 2, 5, 10, 20, … that gives no more than `most` steps up to `end`.
pub(super) fn step(end: f64, most: f64) -> f64 {
    let mut step = 1.0;
    let mut factors = [2.0, 2.5, 2.0].into_iter().cycle();
    while end / step > most {
        step *= factors.next().expect("it goes on for ever");
    }
    step
}
