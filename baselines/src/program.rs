//! Programs of other packages: their paths, the users that they run as, and the errors if they are
//! missing. Nothing is installed.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::Pid;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::process::Child;

use crate::failure::Failure;
use crate::group;
use crate::placement::Placement;

/// The number of output lines that are reported when a program fails.
const LINES_SHOWN: usize = 5;

/// Debian's directories for programs, in addition to PATH, which often lacks `sbin` for users other
/// than root.
const FOLDERS: [&str; 4] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];

/// A required file of a package.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needed {
    /// A name in one of the directories, or an absolute path.
    pub name: &'static str,
    /// The Debian package that contains it.
    pub package: &'static str,
}

impl Needed {
    /// Finds the file.
    pub fn find(&self) -> Result<PathBuf, Failure> {
        let given = Path::new(self.name);
        let places = FOLDERS.iter().map(|folder| Path::new(folder).join(self.name));
        let mut places = places.chain(given.is_absolute().then(|| given.to_owned()));
        places.find(|path| path.is_file()).ok_or_else(|| {
            let Self { name, package } = self;
            Failure::Usage(format!(
                "{name} is missing: install Debian's package {package} (apt-get install \
                 --no-install-recommends {package})"
            ))
        })
    }
}

/// The user for a server that refuses to run as root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    name: &'static str,
    uid: u32,
    gid: u32,
}

impl Owner {
    /// The user of this name, or `None` if this process is not root and its own user suffices.
    pub fn of_server(name: &'static str, package: &str) -> Result<Option<Self>, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        match find_user(&users, name) {
            Some((uid, gid)) => Ok(Some(Self { name, uid, gid })),
            None => Err(Failure::Usage(format!(
                "user {name} does not exist, and the server would run as this user: install \
                 Debian's package {package}, which creates it"
            ))),
        }
    }
}

/// The uid and gid of a user, from the text of `/etc/passwd`.
fn find_user(users: &str, name: &str) -> Option<(u32, u32)> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut numbers = line.split(':').skip(2).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Creates a directory for a baseline. Other users may enter it, because the servers run as another
/// user.
pub(crate) fn temporary(baseline: &str, within: Option<&Path>) -> Result<TempDir, Failure> {
    let cant = |error| Failure::failed("can't make a directory", error);
    let prefix = format!("pangea-{baseline}-");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).permissions(fs::Permissions::from_mode(0o755));
    let made = match within {
        Some(path) => builder.tempdir_in(path),
        None => builder.tempdir(),
    };
    made.map_err(cant)
}

/// Creates a directory that belongs to the server's user.
pub(crate) fn make_dir(path: &Path, owner: Option<&Owner>) -> Result<(), Failure> {
    let cant = |error| Failure::failed(format!("can't make {}", path.display()), error);
    fs::create_dir(path).map_err(cant)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(cant)?;
    give(path, owner)
}

/// Changes the owner of a file to the server's user.
pub(crate) fn give(path: &Path, owner: Option<&Owner>) -> Result<(), Failure> {
    let Some(Owner { uid, gid, .. }) = owner else { return Ok(()) };
    let cant =
        |error| Failure::failed(format!("can't change the owner of {}", path.display()), error);
    chown(path, Some(*uid), Some(*gid)).map_err(cant)
}

/// A command in a place, run as a user. It receives the signal `at_death`, named as in KILL, when
/// the thread that started it ends, so that nothing remains if this process is killed.
pub(crate) fn command(
    place: &Placement,
    owner: Option<&Owner>,
    program: &Path,
    at_death: &str,
) -> Command {
    let mut command = place.command(Path::new("setpriv"));
    command.arg("--pdeathsig").arg(at_death);
    if let Some(Owner { name, .. }) = owner {
        command.arg(format!("--reuid={name}")).arg(format!("--regid={name}"));
        command.arg("--clear-groups");
    }
    command.arg(program).stdin(Stdio::null());
    // Environment variables of this process that would configure a server are removed.
    let is_of_servers = |name: &OsStr| {
        let name = name.to_string_lossy();
        ["PG", "ETCD", "MYSQL", "MARIADB"].iter().any(|prefix| name.starts_with(prefix))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_servers(name)) {
        command.env_remove(name);
    }
    command.env("LC_ALL", "C");
    command
}

/// A program that runs to its end, in its own process group, because this process handles Ctrl-C.
/// Dropping it before its end kills it with all its processes, and waits for them. The directory
/// that they write to can then be removed.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> io::Result<Self> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        tokio::process::Command::from(command).spawn().map(Self)
    }

    /// Waits for the end, and returns the exit status and the output.
    async fn output(&mut self) -> io::Result<(ExitStatus, String)> {
        let (mut said, mut complained) = (Vec::new(), Vec::new());
        let mut stdout = self.0.stdout.take().expect("stdout is a pipe");
        let mut stderr = self.0.stderr.take().expect("stderr is a pipe");
        let (status, _, _) = tokio::try_join!(
            self.0.wait(),
            stdout.read_to_end(&mut said),
            stderr.read_to_end(&mut complained),
        )?;
        said.append(&mut complained);
        Ok((status, String::from_utf8_lossy(&said).into_owned()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has an id until it has been waited for.
        let leader = self.0.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(leader) = leader {
            group::kill(leader);
        }
    }
}

/// Runs a command and waits for it.
pub(crate) async fn run(command: Command, what: &str) -> Result<(), Failure> {
    let cant = |error| Failure::failed(format!("can't run {what}"), error);
    let mut running = Running::start(command).map_err(cant)?;
    let (status, said) = running.output().await.map_err(cant)?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure::failed(format!("{what} ended with {status}"), last_lines(&said))),
    }
}

/// The last lines of a text, joined to one.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES_SHOWN)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_with_its_package() {
        let needed = Needed { name: "no-such-program", package: "some-package" };
        let error = needed.find().unwrap_err();
        assert!(matches!(&error, Failure::Usage(text) if text.contains("install")), "{error}");
        assert!(error.to_string().contains("some-package"), "{error}");
        assert!(Needed { name: "setpriv", package: "util-linux" }.find().is_ok());
    }

    #[tokio::test]
    async fn what_is_not_waited_for_is_gone_with_all_that_it_has_started() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pid");
        let mut command = Command::new("/bin/sh");
        // The script that creates MariaDB's files also starts a server as a child process.
        command.args(["-c", "(sleep 1000 & echo $! > $0.part; mv $0.part $0; wait); true"]);
        command.arg(&path);
        let written = async {
            while !path.exists() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            ended = run(command, "sh") => panic!("{ended:?}"),
            () = written => {}
        }
        let pid = fs::read_to_string(&path).expect("a number");
        let status = fs::read_to_string(format!("/proc/{}/status", pid.trim()));
        // The process that inherited it may not have reaped it yet.
        assert!(status.is_err() || status.is_ok_and(|status| status.contains("State:\tZ")));
    }

    #[tokio::test]
    async fn what_fails_says_why_and_what_ends_well_does_not() {
        let shell = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]);
            command
        };
        run(shell("echo well"), "sh").await.expect("the shell succeeds");
        let error = run(shell("echo one; echo two >&2; exit 3"), "sh").await.unwrap_err();
        assert_eq!(error.to_string(), "sh ended with exit status: 3: one | two");
    }

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let users = "root:x:0:0:root:/root:/bin/sh\nmysqlx:x:7:8::/:\nmysql:x:102:105::/:/bin/no\n";
        assert_eq!(find_user(users, "mysql"), Some((102, 105)));
        assert_eq!(find_user(users, "postgres"), None);
    }
}
