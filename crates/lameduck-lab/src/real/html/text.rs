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
    pub(super) fn row(&mut self, element: &str, cells: &[String]) {
        self.raw("<tr>");
        for (position, cell) in cells.iter().enumerate() {
            let element = if position == 0 { "th" } else { element };
            let cell = escape(cell);
            self.write(format_args!("<{element}>{cell}</{element}>"));
        }
        self.raw("</tr>\n");
    }

    /// A table with its head.
    pub(super) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        self.raw("<div class=\"wide\"><table>\n<thead>");
        let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
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
