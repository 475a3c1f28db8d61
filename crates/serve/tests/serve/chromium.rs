//! A headless Chromium, driven over its DevTools protocol.

use crate::socket::Socket;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);

/// A browser with one page.
pub(crate) struct Browser {
    process: Child,
    socket: Socket,
    session: String,
    count: u64,
    /// The page's error messages.
    pub(crate) complaints: Vec<String>,
    _profile: TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// Several browsers at a time would only make each other wait.
static TURN: Mutex<()> = Mutex::new(());

/// Where Chromium is: `CHROMIUM`, or a usual name on the path.
pub(crate) fn chromium() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("CHROMIUM") {
        return Some(path.into());
    }
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    ["chromium", "chromium-browser", "google-chrome"]
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file())
}

impl Browser {
    /// Starts a browser of a size, or returns why there is none.
    pub(crate) fn start(width: u32, height: u32) -> Result<Self, String> {
        let program = chromium().ok_or("there is no Chromium here")?;
        // A test that failed has released its turn anyway.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let profile = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut process = Command::new(program)
            .args([
                "--headless=new",
                "--remote-debugging-port=0",
                "--no-first-run",
                "--disable-gpu",
            ])
            // Tests may run as root in a container, where Chromium's sandbox cannot.
            .args([
                "--no-sandbox",
                "--disable-dev-shm-usage",
                "--disable-extensions",
                "--mute-audio",
            ])
            .args(["--disable-background-networking", "--hide-scrollbars"])
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let stderr = process.stderr.take().ok_or("Chromium has no stderr")?;
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let address = lines
            .find_map(|line| Some(line.split_once("DevTools listening on ")?.1.trim().to_owned()));
        // An unread pipe would fill up.
        std::thread::spawn(move || lines.for_each(drop));
        let address = address.ok_or("Chromium did not start")?;
        let socket = Socket::connect(&address, PATIENCE).map_err(|error| error.to_string())?;
        let (session, complaints) = (String::new(), Vec::new());
        let mut browser =
            Self { process, socket, session, count: 0, complaints, _profile: profile, _turn: turn };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", target);
        browser.session = session["sessionId"].as_str().unwrap_or("").to_owned();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        browser.call("Emulation.setDeviceMetricsOverride", size);
        Ok(browser)
    }

    /// Calls a method and waits for its answer, which must not be an error.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.ask(method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn ask(&mut self, method: &str, parameters: Value) -> Result<Value, Value> {
        self.count += 1;
        let id = self.count;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.socket.send(&message.to_string()).unwrap();
        loop {
            let answer: Value = serde_json::from_str(&self.socket.read().unwrap()).unwrap();
            self.listen(&answer);
            if answer["id"] == id {
                let error = &answer["error"];
                return if error.is_null() {
                    Ok(answer["result"].clone())
                } else {
                    Err(error.clone())
                };
            }
        }
    }

    fn listen(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                self.complaints.push(parameters["exceptionDetails"].to_string());
            }
            Some("Log.entryAdded") if parameters["entry"]["level"] == "error" => {
                self.complaints.push(parameters["entry"].to_string());
            }
            _ => {}
        }
    }

    /// Goes to an address and waits until the page is loaded.
    pub(crate) fn open(&mut self, address: &str) {
        // The page before it is complete, too.
        self.value("window.isLeft = true");
        self.call("Page.navigate", json!({ "url": address }));
        self.until("document.readyState === 'complete' && !window.isLeft");
    }

    /// The value of an expression.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        self.try_value(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// The value of an expression, unless the page is just being left.
    fn try_value(&mut self, expression: &str) -> Result<Value, Value> {
        let parameters =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.ask("Runtime.evaluate", parameters)?;
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {}",
            answer["exceptionDetails"]
        );
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let start = Instant::now();
        while self.try_value(&format!("!!({expression})")) != Ok(Value::Bool(true)) {
            let page = "document.body.innerText.slice(0, 600)";
            assert!(
                start.elapsed() < PATIENCE,
                "never true: {expression}\n{:?}\n{:?}",
                self.try_value(page),
                self.complaints
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Clicks in the middle of what a selector finds, or of its first line if it has several.
    pub(crate) fn click(&mut self, selector: &str) {
        let quoted = json!(selector);
        self.until(&format!("document.querySelector({quoted})"));
        let place = self.value(&format!(
            "(() => {{ const e = document.querySelector({quoted}); e.scrollIntoView({{block: 'center', behavior: 'instant'}}); \
             const b = e.getClientRects()[0]; return [b.left + b.width / 2, b.top + b.height / 2]; }})()"
        ));
        self.mouse("mousePressed", &place[0], &place[1]);
        self.mouse("mouseReleased", &place[0], &place[1]);
    }

    /// One event of the mouse.
    pub(crate) fn mouse(&mut self, kind: &str, x: &Value, y: &Value) {
        let buttons = u8::from(kind != "mouseReleased");
        let event = json!({ "type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1 });
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Types a text where the cursor is.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
