//! Templates are computed apart: in a process of its own, whose memory and time are bounded.
//!
//! A template that doubles a text in a loop takes all memory within a hundred instructions, and Rust ends a process that
//! gets none. No engine for Jinja bounds what values take in between, and a template may also nest lists until the stack
//! is full, or keep a method busy that counts no instruction. A process of its own can do no harm: it is ended, and that
//! is an error as any other.
//!
//! The request is one JSON object on the helper's stdin, the reply the last line of its stdout.

use super::error::Trouble;
use super::render::{ENDLESS, Request, render};
use std::io::{self, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;

/// Bytes of address space that a helper may take, program included.
const MEMORY: u64 = 256 << 20;
/// And so many for each byte of a request, since what is said may be long.
const MEMORY_PER_BYTE: u64 = 64;
/// Seconds that it may compute: real templates take milliseconds.
const SECONDS: u64 = 2;

type Helper = Box<dyn Fn() -> Command + Send + Sync>;

static HELPER: OnceLock<Helper> = OnceLock::new();

/// Computes every template of this process in another one from now on, a program that calls [`compute_template`] with
/// its stdin and stdout. Programs that meet templates of strangers need this; without it, what a template writes and
/// its instructions are bounded, but not the memory and the time that an instruction takes. The first call counts.
pub fn compute_templates_with(helper: impl Fn() -> Command + Send + Sync + 'static) {
    let _ = HELPER.set(Box::new(helper));
}

/// The helper's part: answers one request. Its bounds hold for the whole process from now on.
pub fn compute_template(mut stdin: impl Read, mut stdout: impl Write) -> io::Result<()> {
    let mut asked = String::new();
    stdin.read_to_string(&mut asked)?;
    #[cfg(unix)]
    bound(MEMORY + MEMORY_PER_BYTE * asked.len() as u64);
    let request: Request = serde_json::from_str(&asked)?;
    let reply = serde_json::to_string(&render(&request))?;
    write!(stdout, "\n{reply}\n")?;
    stdout.flush()
}

#[cfg(unix)]
fn bound(memory: u64) {
    let bounds = [(libc::RLIMIT_AS, memory), (libc::RLIMIT_CPU, SECONDS), (libc::RLIMIT_CORE, 0)];
    for (what, most) in bounds {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: both calls get a pointer to a whole structure that lives longer than they do.
        unsafe {
            if libc::getrlimit(what, &mut limit) == 0 {
                // The first limit only: at the second, a process that computes too long is ended without a reason.
                limit.rlim_cur = limit.rlim_max.min(most);
                libc::setrlimit(what, &limit);
            }
        }
    }
}

/// What the helper makes of a request, or this process if there is none.
pub(super) fn compute(request: &Request) -> Result<String, Trouble> {
    match HELPER.get() {
        Some(helper) => ask(helper(), request),
        None => render(request),
    }
}

fn ask(mut helper: Command, request: &Request) -> Result<String, Trouble> {
    let program = helper.get_program().to_string_lossy().into_owned();
    let failed = |reason: &str| Trouble::Helper(format!("{program}: {reason}"));
    let asked = serde_json::to_vec(request).map_err(|error| failed(&error.to_string()))?;
    helper.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    // Ctrl-C is for whoever asks.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut helper, 0);
    let answered = helper.spawn().and_then(|mut helper| {
        // It reads everything before it writes. If it has ended, its status says more than a broken pipe.
        let _ = helper.stdin.take().map(|mut stdin| stdin.write_all(&asked));
        helper.wait_with_output()
    });
    let output = answered.map_err(|error| failed(&error.to_string()))?;
    if !output.status.success() {
        return Err(ended(output.status).unwrap_or_else(|| failed(&output.status.to_string())));
    }
    let line = output.stdout.trim_ascii_end().rsplit(|&byte| byte == b'\n').next();
    let reply = serde_json::from_slice(line.unwrap_or_default());
    reply.unwrap_or_else(|error| Err(failed(&format!("no reply ({error})"))))
}

/// What the system ended it for.
fn ended(status: ExitStatus) -> Option<Trouble> {
    #[cfg(unix)]
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    #[cfg(not(unix))]
    let signal = None::<i32>;
    let reason = match signal? {
        #[cfg(unix)]
        libc::SIGXCPU => ENDLESS,
        // An allocation that fails, a stack that is full, a system that runs out of memory.
        _ => "it takes more memory than a template may",
    };
    Some(Trouble::Stopped(reason.into()))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::chat::Names;

    fn request(text: &str) -> Request {
        let turns = Some(vec![("user".into(), "Hi\n\"there\"".into())]);
        Request { text: text.into(), names: Names::default(), turns }
    }

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_a_helper_is_asked_is_what_is_rendered() {
        // The helper's input comes back as the reply's text.
        let request = request("{{ messages[0].content }}!");
        let script = r#"printf 'noise\n{"Ok":"%s"}\n' "$(od -An -tx1 -v | tr -d ' \n')""#;
        let asked = ask(sh(script), &request).unwrap();
        let digits: Vec<u32> = asked.chars().map(|c| c.to_digit(16).unwrap()).collect();
        let asked: Vec<u8> = digits.chunks(2).map(|pair| (16 * pair[0] + pair[1]) as u8).collect();
        let again: Request = serde_json::from_slice(&asked).unwrap();
        assert_eq!(render(&again).unwrap(), "Hi\n\"there\"!");
        assert_eq!(render(&again), render(&request));
    }

    #[test]
    fn a_helper_that_ends_badly_is_an_error_that_says_why() {
        for (script, trouble) in [
            ("kill -XCPU $$", Trouble::Stopped(ENDLESS.into())),
            ("kill -ABRT $$", Trouble::Stopped("it takes more memory than a template may".into())),
            ("kill -SEGV $$", Trouble::Stopped("it takes more memory than a template may".into())),
            ("exit 3", Trouble::Helper("sh: exit status: 3".into())),
            (r#"echo '{"Err":{"Refused":"no"}}'"#, Trouble::Refused("no".into())),
        ] {
            assert_eq!(ask(sh(script), &request("x")), Err(trouble), "{script}");
        }
        // More than a pipe holds, unread.
        let long = request(&"x".repeat(1 << 20));
        assert_eq!(ask(sh("exit 3"), &long), Err(Trouble::Helper("sh: exit status: 3".into())));
        for script in ["true", "echo what"] {
            let said = format!("{:?}", ask(sh(script), &request("x")));
            assert!(said.contains("sh: no reply"), "{said}");
        }
        let said = format!("{:?}", ask(Command::new("/nowhere/hadal"), &request("x")));
        assert!(said.contains("/nowhere/hadal: No such file"), "{said}");
    }
}
