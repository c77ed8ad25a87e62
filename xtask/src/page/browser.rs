//! One headless Chromium, spoken to over a pair of pipes by its DevTools protocol: a page is opened
//! once, and looked at in as many ways as one likes.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::shell::{self, Failure};

/// What the browser must not do by itself: a check needs a page, not a person's desktop.
const FLAGS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
];
/// The browser reads requests from descriptor 3 and writes answers to 4. A shell moves our pipes there.
const PIPES: &str = r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >&2"#;
/// One answer, one page's load. Half a second is usual; the rest is for a machine that does something else.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// How long it may take to go after it was told to.
const CLOSE_MAX: Duration = Duration::from_secs(10);

/// A running browser with one tab. Its process and its profile go with it.
pub struct Browser {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<Value>,
    last: u64,
    session: String,
    profile: PathBuf,
    /// What the tab has said since the last page was opened.
    said: Said,
}

/// What a page has said and wanted.
#[derive(Debug, Default)]
pub struct Said {
    /// Errors and warnings of scripts, of the console and of the browser about the page.
    pub complaints: Vec<String>,
    /// What it asked for, beside itself.
    pub requests: Vec<String>,
    /// Loads that came to their end, by their names.
    loaded: Vec<Value>,
}

impl Browser {
    /// Starts it with a new profile below `directory`, where it also leaves what it says.
    pub fn start(directory: &Path) -> Result<Self, Failure> {
        let profile = directory.join(format!("profile-{}", std::process::id()));
        let log = File::create(directory.join("chromium.log"))?;
        let mut command = Command::new("sh");
        command
            .args(["-c", PIPES, "chromium"])
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = command.spawn()?;
        let requests = child.stdin.take().expect("its standard input is piped");
        let output = child.stdout.take().expect("its standard output is piped");
        let (sender, answers) = channel();
        thread::spawn(move || read(output, &sender));
        let mut browser = Self {
            child,
            requests,
            answers,
            last: 0,
            session: String::new(),
            profile,
            said: Said::default(),
        };
        browser.attach()?;
        Ok(browser)
    }

    fn attach(&mut self) -> Result<(), Failure> {
        let tab = self.ask("Target.createTarget", json!({"url": "about:blank"}))?;
        let tab = json!({"targetId": tab["targetId"], "flatten": true});
        let attached = self.ask("Target.attachToTarget", tab)?;
        text(&attached["sessionId"]).clone_into(&mut self.session);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.ask(&format!("{domain}.enable"), json!({}))?;
        }
        self.ask("Page.setLifecycleEventsEnabled", json!({"enabled": true}))?;
        Ok(())
    }

    /// Opens a file and waits until it is loaded. Returns what it said and wanted meanwhile.
    pub fn open(&mut self, file: &Path) -> Result<Said, Failure> {
        self.said = Said::default();
        // The browser says where it was in its own spelling, which has no blanks.
        let url = format!("file://{}", file.canonicalize()?.display()).replace(' ', "%20");
        let mut opened = self.ask("Page.navigate", json!({"url": url}))?;
        if let Some(error) = opened["errorText"].as_str() {
            return Err(Failure(format!("{url}: {error}")));
        }
        let (end, loaded) = (Instant::now() + ANSWER_MAX, opened["loaderId"].take());
        while !self.said.loaded.contains(&loaded) {
            let message = self.message(end)?;
            self.said.hear(&message);
        }
        // Whatever the page still had to say stands in the pipe before this answer.
        self.evaluate("0")?;
        self.said.requests.retain(|request| *request != url);
        Ok(std::mem::take(&mut self.said))
    }

    /// Makes the window so wide and high, and the reader's wish `light` or `dark`, on `screen` or for `print`.
    pub fn view(
        &mut self,
        (width, height): (u32, u32),
        scheme: &str,
        medium: &str,
    ) -> Result<(), Failure> {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", size)?;
        let wish = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        let media = json!({"media": medium, "features": wish});
        self.ask("Emulation.setEmulatedMedia", media)?;
        Ok(())
    }

    /// What an expression comes to in the page.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value, Failure> {
        let what = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.ask("Runtime.evaluate", what)?;
        if let Some(exception) = answer.get("exceptionDetails") {
            return Err(Failure(format!("in the page: {exception}")));
        }
        Ok(answer["result"]["value"].clone())
    }

    /// A picture of what the window shows, as PNG, without its scroll bars.
    pub fn picture(&mut self) -> Result<Vec<u8>, Failure> {
        self.evaluate("document.documentElement.style.scrollbarWidth = 'none'")?;
        let answer = self.ask("Page.captureScreenshot", json!({"format": "png"}))?;
        self.evaluate("document.documentElement.style.scrollbarWidth = ''")?;
        bytes(&answer["data"])
    }

    /// The page on A4, as PDF.
    pub fn paper(&mut self) -> Result<Vec<u8>, Failure> {
        let a4 = json!({"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": true});
        let answer = self.ask("Page.printToPDF", a4)?;
        bytes(&answer["data"])
    }

    fn ask(&mut self, method: &str, params: Value) -> Result<Value, Failure> {
        self.last += 1;
        let mut request = json!({"id": self.last, "method": method, "params": params});
        if !self.session.is_empty() {
            request["sessionId"] = json!(self.session);
        }
        let mut line = request.to_string().into_bytes();
        line.push(0);
        let sent = self.requests.write_all(&line);
        sent.map_err(|error| Failure(format!("chromium takes no request: {error}")))?;
        let end = Instant::now() + ANSWER_MAX;
        loop {
            let mut message = self.message(end)?;
            if message["id"] != self.last {
                self.said.hear(&message);
            } else if let Some(error) = message.get("error") {
                return Err(Failure(format!("{method}: {error}")));
            } else {
                return Ok(message["result"].take());
            }
        }
    }

    fn message(&mut self, end: Instant) -> Result<Value, Failure> {
        let left = end.saturating_duration_since(Instant::now());
        let message = self.answers.recv_timeout(left);
        message
            .map_err(|_| Failure("chromium has ended or does not answer: see chromium.log".into()))
    }
}

impl Said {
    fn hear(&mut self, event: &Value) {
        let params = &event["params"];
        match text(&event["method"]) {
            "Runtime.exceptionThrown" => {
                let details = &params["exceptionDetails"];
                let what = details["exception"]["description"].as_str();
                let what = what.unwrap_or_else(|| text(&details["text"]));
                self.complaints.push(what.to_owned());
            }
            "Runtime.consoleAPICalled" if params["type"] != "log" => {
                self.complaints.push(params["args"].to_string());
            }
            "Log.entryAdded" => self
                .complaints
                .push(text(&params["entry"]["text"]).to_owned()),
            "Page.lifecycleEvent" if params["name"] == "load" => {
                self.loaded.push(params["loaderId"].clone());
            }
            "Network.requestWillBeSent" => self
                .requests
                .push(text(&params["request"]["url"]).to_owned()),
            _ => {}
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session.clear();
        let asked = self
            .requests
            .write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let limit = if asked.is_ok() {
            CLOSE_MAX
        } else {
            Duration::ZERO
        };
        if let Err(Failure(why)) = shell::wait(&mut self.child, limit) {
            eprintln!("chromium may still be there: {why}");
        }
        if let Err(error) = fs::remove_dir_all(&self.profile) {
            eprintln!("{} stays behind: {error}", self.profile.display());
        }
    }
}

/// Hands on what the browser writes, until it ends: JSON texts, a zero byte after each.
fn read(output: ChildStdout, sender: &Sender<Value>) {
    for message in BufReader::new(output).split(0).map_while(Result::ok) {
        let Ok(message) = serde_json::from_slice(&message) else {
            continue;
        };
        if sender.send(message).is_err() {
            return;
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn bytes(value: &Value) -> Result<Vec<u8>, Failure> {
    decode(text(value)).ok_or_else(|| Failure("chromium's answer is not base64".into()))
}

/// Base64 with its padding, as the protocol carries files.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in text.as_bytes().chunks(4) {
        let padding = group.iter().filter(|byte| **byte == b'=').count();
        let mut word = 0_u32;
        for byte in group {
            word = word << 6 | u32::from(digit(*byte)?);
        }
        let [_, decoded @ ..] = word.to_be_bytes();
        bytes.extend_from_slice(decoded.get(..3_usize.checked_sub(padding)?)?);
    }
    Some(bytes)
}

const fn digit(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        b'=' => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_with_its_padding() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("TQ==", b"M"),
            ("TWE=", b"Ma"),
            ("TWFu", b"Man"),
            ("+/8A", &[0xfb, 0xff, 0]),
        ] {
            assert_eq!(decode(text).as_deref(), Some(bytes), "{text}");
        }
        assert_eq!(decode("T?=="), None);
    }

    #[test]
    fn what_a_page_says_is_heard() {
        let mut said = Said::default();
        said.hear(&json!({"method": "Runtime.exceptionThrown",
            "params": {"exceptionDetails": {"exception": {"description": "Error: a"}}}}));
        said.hear(&json!({"method": "Log.entryAdded", "params": {"entry": {"text": "b"}}}));
        said.hear(&json!({"method": "Runtime.consoleAPICalled", "params": {"type": "log"}}));
        said.hear(&json!({"method": "Network.requestWillBeSent",
            "params": {"request": {"url": "http://c/"}}}));
        assert_eq!(said.complaints, ["Error: a", "b"]);
        assert_eq!(said.requests, ["http://c/"]);
    }
}
