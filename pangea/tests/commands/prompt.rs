//! The prompts of `pangea demo` and `pangea sql`: scripts, and a terminal, which is emulated by
//! script(1).

use crate::support;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use crate::support::demo::Demo;
use crate::support::{pangea, processes_of, run, wait_until};
use rustix::process::Signal;

const TWO: [&str; 2] = ["--regions", "us-east,ca-central"];
const THREE: [&str; 2] = ["--regions", "us-east,ca-central,us-central"];

/// Waits until a demo has ended, and returns its exit code and its remaining output, which is
/// smaller than the buffer of a pipe.
pub(crate) fn end(mut demo: Demo) -> (Option<i32>, String, String) {
    let (mut out, mut err) = (String::new(), String::new());
    let process = std::cell::RefCell::new(&mut demo.process);
    wait_until("the demo has ended", || process.borrow_mut().try_wait().unwrap().is_some());
    demo.stdout.read_to_string(&mut out).unwrap();
    demo.process.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    (demo.process.wait().unwrap().code(), out, err)
}

/// Returns whether these are lines of the text, in this order.
fn has_lines(text: &str, lines: &[&str]) -> bool {
    let mut rest = text.lines().map(str::trim_end);
    lines.iter().all(|line| rest.any(|found| found == *line))
}

fn assert_nothing_is_left(directory: &Path) {
    assert_eq!(processes_of(directory), [] as [u32; 0]);
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
}

#[test]
fn a_script_is_done_with_tags_and_notices_and_its_errors_count() {
    let directory = tempfile::tempdir().unwrap();
    let script = "create table t (id int primary key, v text);\n\
        insert into t values (1, 'a;b'),\n (2, null); -- ; \\q\n\
        begin; insert into t values (3, 'c'); select nonsense; commit;\n\
        commit;\n\
        \\nonsense\n\
        begin;\n\
        \\c ca-central;\n\
        set reads = strict; select v from t where id = 1; \\q\n\
        select 'never';\n";
    let demo = Demo::start_script(directory.path(), &TWO, script);
    let (code, out, err) = end(demo);
    let tags = ["CREATE TABLE", "INSERT 0 2", "BEGIN", "INSERT 0 1", "ROLLBACK", "COMMIT", "BEGIN"];
    assert!(has_lines(&out, &tags), "{out}");
    let moved = "the open transaction in us-east was rolled back";
    assert!(has_lines(&out, &[moved, "SET", " a;b", "(1 row)"]), "{out}");
    assert!(!out.contains("never"), "{out}");
    for line in [
        "<stdin>:4: ERROR 42703: ",
        "<stdin>:5: WARNING: there is no transaction in progress",
        "<stdin>:6: \\nonsense is not a command",
    ] {
        assert!(err.lines().any(|said| said.starts_with(line)), "{line}: {err}");
    }
    assert!(err.ends_with("pangea: 2 lines of the script failed\n"), "{err}");
    assert_eq!(code, Some(1));
    assert_nothing_is_left(directory.path());
}

/// Story: a script with a `\heal` after an INSERT that had no majority once waited forever.
#[test]
fn a_command_of_a_script_does_not_wait_for_a_statement_that_waits() {
    let directory = tempfile::tempdir().unwrap();
    let script = "create table t (id int primary key);\n\
        \\cut us-east ca-central\n\\cut us-east us-central\n\
        insert into t values (1);\n\
        select count(*) from t;\n\
        \\heal\n\
        \\q\n";
    let demo = Demo::start_script(directory.path(), &THREE, script);
    let (code, out, err) = end(demo);
    assert!(
        has_lines(&out, &["all links are restored", "INSERT 0 1", "     1", "(1 row)"]),
        "{out}{err}"
    );
    // The time that it waited depends on the machine. If it was long, a warning names the reason.
    let warned = |line: &str| line.contains("WARNING: waiting for") || line.starts_with("HINT: ");
    assert!(err.lines().all(warned), "{err}");
    assert_eq!(code, Some(0), "{out}{err}");
    assert_nothing_is_left(directory.path());
}

fn sql(url: &str, arguments: &[&str]) -> Output {
    run(&[&["sql", url], arguments].concat())
}

fn sql_script(url: &str, script: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(pangea());
    command.args(["sql", url]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    process.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_script_that_ends_leaves_the_demo_running_for_others() {
    let directory = tempfile::tempdir().unwrap();
    let script = "create table t (id int primary key)";
    let mut demo = Demo::start_script(directory.path(), &TWO, script);
    let urls = demo.urls(2);
    demo.line();
    assert_eq!(demo.line(), "CREATE TABLE\n");
    // The table was just created in another region.
    let both = "set reads = strict; insert into t values (1); insert into t values (2), (3); \
        select * from t";
    let output = sql(&urls[1].1, &["-c", both]);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(has_lines(&out, &["INSERT 0 1", "INSERT 0 2", "(3 rows)"]), "{output:?}");
    assert_eq!(output.status.code(), Some(0));
    // Results before an error are shown, too.
    let output = sql(&urls[1].1, &["-c", "begin; select 7; select nonsense"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(has_lines(
        &String::from_utf8_lossy(&output.stdout),
        &["BEGIN", "        7", "(1 row)"]
    ));
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.starts_with("pangea: ERROR 42703"), "{err}");
    // A script ends at its first error, which names the line where the statement ends.
    let (code, out, err) =
        sql_script(&urls[0].1, "\nselect 'a\n\nb';\nselect\n nonsense;\nselect 8");
    assert!(has_lines(&out, &["(1 row)"]) && !out.contains('8'), "{out}");
    assert_eq!(code, Some(1));
    assert!(err.starts_with("pangea: <stdin>:6: ERROR 42703: "), "{err}");
    let (code, out, err) = sql_script(&urls[0].1, "select 7;\n\\nonsense\nselect 8;\n");
    assert_eq!(code, Some(1), "{err}");
    assert!(has_lines(&out, &["        7", "(1 row)"]) && !out.contains('8'), "{out}");
    assert!(err.starts_with("pangea: <stdin>:2: \\nonsense is not a command"), "{err}");
    demo.signal(Signal::TERM);
    let (code, _, err) = end(demo);
    assert_eq!((code, err.contains("The script has ended.")), (Some(0), true), "{err}");
    assert_nothing_is_left(directory.path());
}

/// A user at a terminal.
struct Terminal {
    process: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    /// Starts a demo at a terminal with a size, which script(1) does not set.
    fn start(directory: &Path, arguments: &[&str]) -> Self {
        let (pangea, arguments) = (pangea().display().to_string(), arguments.join(" "));
        let command = format!("stty rows 40 columns 120; exec {pangea} demo {arguments}");
        let mut process = Command::new("script")
            .args(["--quiet", "--return", "--command", &command, "/dev/null"])
            .env("TMPDIR", directory)
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script(1) of util-linux");
        let (keys, mut shown) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let screen = Arc::new(Mutex::new(String::new()));
        let seen = screen.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 1 << 12];
            while let Ok(len) = shown.read(&mut bytes)
                && len > 0
            {
                *seen.lock().unwrap() += &String::from_utf8_lossy(&bytes[..len]);
            }
        });
        Self { process, keys, screen }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits until the screen shows a text, and discards everything up to it.
    fn wait_for(&self, text: &str) {
        let what = || format!("{text:?} is not shown: {}", self.screen.lock().unwrap());
        support::wait_until_or(what, || {
            let mut screen = self.screen.lock().unwrap();
            let Some(at) = screen.find(text) else { return false };
            screen.drain(..at + text.len());
            true
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // This fails only if the process has already exited. The demo ends with its terminal.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_statement_that_waits_leaves_the_prompt_usable_and_ctrl_c_cancels_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(directory.path(), &THREE);
    terminal.wait_for("us-east=> ");
    terminal.press("create table t (id int primary key);\r");
    terminal.wait_for("CREATE TABLE");
    terminal.press("\\cut us-east ca-central \\cut us-east us-central\r");
    terminal.wait_for("between us-east and us-central");
    terminal.wait_for("us-east=> ");
    // Both a strict read and a write need a majority.
    terminal.press("set reads = strict; select * from t;\r");
    terminal.wait_for("The statement is still running.");
    terminal.wait_for("us-east..> ");
    terminal.press("help\r");
    terminal.wait_for("stop everything");
    // Story: a command that changes the region while a statement may never complete once waited
    // without a message.
    terminal.press("\\c ca-central;\r");
    terminal.wait_for("A statement is still running in us-east: \\c ca-central was not executed.");
    terminal.wait_for("us-east..> ");
    terminal.press("\x03");
    terminal.wait_for("ERROR 57014");
    terminal.wait_for("us-east=> ");
    // The server's warning arrives while the statement is running, not at its end.
    terminal.press("insert into t values (1), (2);\r");
    terminal.wait_for("WARNING: ");
    terminal.wait_for("us-east..> ");
    terminal.press("\\heal\r");
    terminal.wait_for("all links are restored");
    terminal.wait_for("INSERT 0 2");
    terminal.press("begin;\r");
    terminal.wait_for("us-east=*> ");
    terminal.press("select nonsense;\r");
    terminal.wait_for("us-east=!> ");
    terminal.press("commit;\r");
    terminal.wait_for("ROLLBACK");
    terminal.wait_for("us-east=> ");
    // The first Ctrl-C discards the input; the demo ends only if there is no input.
    terminal.press("select\r");
    terminal.wait_for("us-east-> ");
    terminal.press("quit\r");
    terminal.wait_for("The statement is incomplete.");
    terminal.press("\x03");
    terminal.wait_for("us-east=> ");
    terminal.press("\x03");
    terminal.wait_for("Stopping");
    assert!(terminal.process.wait().unwrap().success());
    assert_nothing_is_left(directory.path());
}

#[test]
fn a_terminal_that_goes_away_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(directory.path(), &TWO);
    terminal.wait_for("With two regions, neither may fail");
    terminal.wait_for("us-east=> ");
    terminal.press("begin;\r");
    terminal.wait_for("us-east=*> ");
    assert_eq!(processes_of(directory.path()).len(), 2);
    terminal.process.kill().unwrap();
    terminal.process.wait().unwrap();
    wait_until("all processes have ended", || {
        processes_of(directory.path()).is_empty()
            && std::fs::read_dir(directory.path()).unwrap().count() == 0
    });
}

#[test]
fn a_word_leaves_and_a_pasted_script_changes_regions_in_its_turn() {
    let directory = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(directory.path(), &TWO);
    terminal.wait_for("us-east=> ");
    // A terminal marks pasted text.
    let script = "create table t (id int primary key);\n\\c ca-central;\nselect 'here';";
    terminal.press(&format!("\x1b[200~{script}\x1b[201~\r"));
    terminal.wait_for("CREATE TABLE");
    terminal.wait_for("SQL now goes to ca-central");
    terminal.wait_for("(1 row)");
    terminal.wait_for("ca-central=> ");
    terminal.press("Exit;\r");
    assert!(terminal.process.wait().unwrap().success());
    assert_nothing_is_left(directory.path());
}
