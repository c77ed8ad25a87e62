//! Text that becomes a page.

use std::fmt::{Display, Write};

/// A page that grows.
#[derive(Default)]
pub(super) struct Page {
    text: String,
}

impl Page {
    /// What is a page's own, as it is.
    pub(super) fn raw(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Data in an element.
    pub(super) fn put(&mut self, element: &str, class: &str, data: &str) {
        if class.is_empty() {
            self.write(format_args!("<{element}>{}</{element}>\n", escape(data)));
        } else {
            let data = escape(data);
            self.write(format_args!(
                "<{element} class=\"{class}\">{data}</{element}>\n"
            ));
        }
    }

    /// A row of a table: the first cell names it.
    fn row(&mut self, element: &str, cells: &[Cell]) {
        self.raw("<tr>");
        for (position, Cell { text, class }) in cells.iter().enumerate() {
            let element = if position == 0 { "th" } else { element };
            let text = escape(text);
            if class.is_empty() {
                self.write(format_args!("<{element}>{text}</{element}>"));
            } else {
                self.write(format_args!(
                    "<{element} class=\"{class}\">{text}</{element}>"
                ));
            }
        }
        self.raw("</tr>\n");
    }

    /// A table with its head.
    pub(super) fn table(&mut self, class: &str, head: &[&str], rows: &[Vec<Cell>]) {
        self.write(format_args!(
            "<div class=\"wide\"><table class=\"{class}\">\n<thead>"
        ));
        let head: Vec<Cell> = head.iter().map(|cell| (*cell).into()).collect();
        self.row("th", &head);
        self.raw("</thead>\n<tbody>\n");
        for row in rows {
            self.row("td", row);
        }
        self.raw("</tbody></table></div>\n");
    }

    pub(super) fn finish(self) -> String {
        self.text
    }

    fn write(&mut self, what: impl Display) {
        write!(self.text, "{what}").expect("writing to a String cannot fail");
    }
}

/// An entry of a legend: a sample, and what it stands for, never apart.
pub(super) fn key(page: &mut Page, class: &str, name: &str) {
    page.write(format_args!(
        "<span class=\"entry\"><span class=\"key {class}\"></span>{name}</span>\n"
    ));
}

/// One figure: a text, and what the style makes of it.
pub(super) struct Cell {
    pub(super) text: String,
    /// Empty where it is nothing special.
    pub(super) class: &'static str,
}

impl Cell {
    /// What was lost.
    pub(super) const fn loss(text: String) -> Self {
        let class = "loss";
        Self { text, class }
    }

    /// A count of what should not be: nothing special at 0.
    pub(super) fn count(count: u64) -> Self {
        match count {
            0 => "0".into(),
            count => Self::loss(grouped(count)),
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, class: "" }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<Option<Self>> for Cell {
    /// A dash where there is none.
    fn from(cell: Option<Self>) -> Self {
        cell.unwrap_or_else(|| "–".into())
    }
}

/// A count with a narrow blank between groups of three digits, which no line is broken at.
pub(super) fn grouped(count: impl Into<u64>) -> String {
    let digits = count.into().to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 * 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Data as it may stand in an element or in a quoted attribute. Control characters, which no page
/// may hold, become a mark.
pub(super) fn escape(data: &str) -> String {
    let mut text = String::with_capacity(data.len());
    for character in data.chars() {
        match character {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '"' => text.push_str("&quot;"),
            '\'' => text.push_str("&#39;"),
            '\n' | '\t' => text.push(character),
            control if control.is_control() => text.push('\u{fffd}'),
            other => text.push(other),
        }
    }
    text
}
