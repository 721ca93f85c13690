//! PostgreSQL clients as their users run them, against a cluster of three regions.
//!
//! Each test is a folder with a program in the language of its driver. Its dependencies are
//! installed once, from the language's registry, into the target folder. If a runtime or a registry
//! is missing, the test reports that on stderr and is skipped. A broken program is no reason to
//! skip: once its libraries are installed, it must build.

#[path = "../support/mod.rs"]
mod support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use rustix::process::Signal;
use support::demo::Demo;

/// Returns the directory where a client's dependencies are installed and where it is built.
fn workshop(name: &str) -> PathBuf {
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("clients").join(name);
    std::fs::create_dir_all(&place).unwrap();
    place
}

fn sources(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}", text(&output.stdout), text(&output.stderr))
}

/// Runs a command that prepares a client. Returns `None` if it fails: the test is then skipped.
fn prepared(directory: &Path, command: &[&str]) -> Option<()> {
    let (program, arguments) = command.split_first().unwrap();
    let ran = Command::new(program).args(arguments).current_dir(directory).output();
    let why = match ran {
        Ok(output) if output.status.success() => return Some(()),
        Ok(output) => shown(&output),
        Err(error) => error.to_string(),
    };
    // Written directly, because the output of macros is shown only for failed tests.
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "skipped: {} did not work: {why}", command.join(" "));
    None
}

/// Runs a command that builds a client whose libraries are installed.
fn built(directory: &Path, command: &[&str]) {
    let (program, arguments) = command.split_first().unwrap();
    let output = Command::new(program).args(arguments).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{}: {}", command.join(" "), shown(&output));
}

/// Runs a cluster for the duration of a test. Only one runs at a time, because each has three
/// nodes.
fn with_cluster(test: impl FnOnce(&[(String, String)])) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let mut demo = Demo::start(directory.path(), &[]);
    let urls = demo.urls(3);
    test(&urls);
    demo.signal(Signal::INT);
    assert!(demo.process.wait().unwrap().success());
}

/// Returns the port of the first region.
fn port(urls: &[(String, String)]) -> String {
    let (_, url) = &urls[0];
    let rest = url.rsplit(':').next().unwrap();
    rest.split('/').next().unwrap().to_owned()
}

/// Runs a program to completion. It must succeed, and its last output must be `ok`.
fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let text = shown(&output);
    assert!(output.status.success(), "{command:?}: {text}");
    assert!(String::from_utf8_lossy(&output.stdout).trim_end().ends_with("ok"), "{text}");
}

fn python(script: &str) {
    // Two tests share the installation.
    static ONE: Mutex<()> = Mutex::new(());
    let place = workshop("python");
    {
        let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        copy(&sources("python"), &place);
        let install = ["venv/bin/pip", "install", "--quiet", "--requirement", "requirements.txt"];
        if prepared(&place, &["python3", "-m", "venv", "venv"]).is_none()
            || prepared(&place, &install).is_none()
        {
            return;
        }
    }
    with_cluster(|urls| {
        let python = place.join("venv/bin/python");
        run(Command::new(python).arg(script).arg(port(urls)).current_dir(&place));
    });
}

#[test]
fn psycopg() {
    python("with_psycopg.py");
}

#[test]
fn asyncpg() {
    python("with_asyncpg.py");
}

#[test]
fn sqlalchemy_with_its_orm() {
    python("with_sqlalchemy.py");
}

#[test]
fn django_with_migrations_and_its_admin() {
    python("with_django.py");
}

#[test]
fn node_postgres_and_drizzle() {
    let place = workshop("node");
    copy(&sources("node"), &place);
    let install = ["npm", "install", "--silent", "--no-package-lock", "--no-audit", "--no-fund"];
    if prepared(&place, &install).is_none() {
        return;
    }
    with_cluster(|urls| {
        run(Command::new("node").arg("main.mjs").arg(port(urls)).current_dir(&place));
    });
}

/// Runs the Rust client with a driver. Its crate is not part of the workspace, whose dependencies
/// it would change.
fn rust(driver: &str) {
    static ONE: Mutex<()> = Mutex::new(());
    let place = workshop("rust");
    {
        let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        copy(&sources("rust"), &place);
        if prepared(&place, &["cargo", "fetch", "--locked"]).is_none() {
            return;
        }
        built(&place, &["cargo", "build", "--quiet", "--offline", "--target-dir", "target"]);
    }
    with_cluster(|urls| {
        run(Command::new(place.join("target/debug/clients")).args([driver, &port(urls)]));
    });
}

#[test]
fn sqlx_with_migrations() {
    rust("sqlx");
}

#[test]
fn tokio_postgres() {
    rust("tokio-postgres");
}

#[test]
fn pgx_and_gorm() {
    let place = workshop("go");
    copy(&sources("go"), &place);
    if prepared(&place, &["go", "mod", "download"]).is_none() {
        return;
    }
    built(&place, &["go", "build", "-mod=mod", "-o", "clients", "."]);
    with_cluster(|urls| run(Command::new(place.join("clients")).arg(port(urls))));
}

#[test]
fn jdbc_with_hikari_and_hibernate() {
    let place = workshop("java");
    copy(&sources("java"), &place);
    let maven = |goal| ["mvn", "--quiet", "--batch-mode", "-Dmdep.outputFile=classpath", goal];
    // The compiler is a plugin, which the first run downloads.
    if prepared(&place, &maven("dependency:build-classpath")).is_none()
        || prepared(&place, &maven("dependency:go-offline")).is_none()
    {
        return;
    }
    built(&place, &maven("compile"));
    let libraries = std::fs::read_to_string(place.join("classpath")).unwrap();
    let classpath = format!("target/classes:{}", libraries.trim());
    with_cluster(|urls| {
        let mut java = Command::new("java");
        java.args(["-cp", &classpath, "Main"]).arg(port(urls)).current_dir(&place);
        run(&mut java);
    });
}

/// Returns the output of psql for these commands.
fn psql(url: &str, commands: &[&str]) -> String {
    let mut psql = Command::new("psql");
    psql.args(["--no-psqlrc", "--quiet", url]);
    commands.iter().for_each(|command| {
        psql.args(["-c", command]);
    });
    let output = psql.output().unwrap();
    let text = shown(&output);
    assert!(output.status.success(), "{commands:?}: {text}");
    text
}

/// Returns a dump of a database, without the random token that each dump contains.
fn dumped(url: &str) -> String {
    let mut pg_dump = Command::new("pg_dump");
    // Another region may have written the data.
    let output = pg_dump.arg(url).env("PGOPTIONS", "-c reads=strict").output().unwrap();
    let text = shown(&output);
    assert!(output.status.success(), "{text}");
    let is_of_dump =
        |line: &&str| !line.starts_with("\\restrict") && !line.starts_with("\\unrestrict");
    text.lines().filter(is_of_dump).collect::<Vec<_>>().join("\n")
}

/// Runs a script, which must not fail.
fn psql_file(url: &str, script: &Path) {
    let mut psql = Command::new("psql");
    psql.args(["--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1", url, "-f"]).arg(script);
    let output = psql.output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
}

#[test]
fn pg_dump_and_back() {
    if prepared(Path::new("."), &["pg_dump", "--version"]).is_none() {
        return;
    }
    with_cluster(|urls| {
        let [(_, first), (_, second), (_, third)] = urls else { panic!("three regions") };
        psql_file(first, &sources("dump.sql"));
        let before = dumped(first);
        for part in ["CREATE PROCEDURE", "COPY shop.lines", "ADD GENERATED", "OWNED BY", "GRANT"] {
            assert!(before.contains(part), "{part}: {before}");
        }
        assert!(!before.contains("pangea.statements"), "not only the user's objects: {before}");
        let drops = [
            "drop schema shop cascade",
            "drop table customers, always cascade",
            "drop sequence free",
            "drop procedure pay",
            "drop type mood",
        ];
        psql(second, &drops);
        assert!(!dumped(second).contains("customers"), "all objects are dropped");
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("dump.sql");
        std::fs::write(&script, &before).unwrap();
        psql_file(second, &script);
        assert_eq!(before, dumped(third), "the restored data equals the dump");
    });
}

/// psql's describe commands, each of which queries the catalog.
#[rustfmt::skip]
const DESCRIBE: &[&str] = &[
    "\\d",
    "\\di",
    "\\ds",
    "\\dv",
    "\\dn+",
    "\\du",
    "\\l",
    "\\df",
    "\\dT",
    "\\db",
    "\\dx",
    "\\dD",
    "\\sv v",
    "\\dRp",
    "\\dE",
    "\\dm",
    "\\drds",
    "\\ddp",
    "\\dconfig",
    "\\dAc",
    "\\dd",
    "\\dFd",
    "\\dy",
    "\\dew",
    "\\dL",
    "\\dO",
    "\\dC",
    "\\do",
    "\\da",
    "\\dX",
    "\\dP",
    "\\z",
];

#[test]
fn psql_describes_what_there_is() {
    if prepared(Path::new("."), &["psql", "--version"]).is_none() {
        return;
    }
    with_cluster(|urls| {
        let url = &urls[0].1;
        psql(
            url,
            &[
                "create table parent (id int primary key, name varchar(20) not null unique)",
                "create table child (id serial primary key, p int references parent on delete \
                 cascade, s text check (s <> ''), n numeric(8,2) default 1.5)",
                "create index child_n on child (n desc, lower(s)) where p > 1",
                "create view v as select id, s from child",
                "comment on table child is 'a child'",
                "create role reader",
                "grant select on child to reader",
            ],
        );
        let child = psql(url, &["\\d+ child"]);
        for line in [
            "id     | integer      |           | not null | nextval('child_id_seq'::regclass)",
            "\"child_pkey\" PRIMARY KEY, btree (id)",
            "\"child_n\" btree (n DESC, lower(s)) WHERE (p > 1)",
            "\"child_s_check\" CHECK ((s <> ''))",
            "\"child_p_fkey\" FOREIGN KEY (p) REFERENCES parent(id) ON DELETE CASCADE",
        ] {
            assert!(child.contains(line), "{line} in {child}");
        }
        let parent = psql(url, &["\\d parent"]);
        assert!(parent.contains("TABLE \"child\" CONSTRAINT \"child_p_fkey\""), "{parent}");
        assert!(psql(url, &["\\d child_id_seq"]).contains("Owned by: public.child.id"));
        assert!(psql(url, &["\\d+ v"]).contains("SELECT id, s FROM child"));
        assert!(psql(url, &["\\dt+"]).contains("a child"));
        assert!(psql(url, &["\\dp child"]).contains("reader=r/"));
        for command in DESCRIBE {
            let text = psql(url, &[command]);
            assert!(!text.contains("ERROR"), "{command}: {text}");
        }
    });
}

#[test]
fn pgbench_with_its_own_script() {
    // Debian installs it with the server, outside of the path.
    let beside = "/usr/lib/postgresql/15/bin/pgbench";
    let pgbench = if Path::new(beside).exists() { beside } else { "pgbench" };
    if prepared(Path::new("."), &[pgbench, "--version"]).is_none() {
        return;
    }
    with_cluster(|urls| {
        let port = port(urls);
        let at = ["-h", "127.0.0.1", "-p", &port, "-U", "pangea"];
        let initial = Command::new(pgbench).args(at).args(["-i", "-s", "1", "pangea"]).output();
        let initial = initial.unwrap();
        assert!(initial.status.success(), "{}", shown(&initial));
        let script = ["-c", "4", "-t", "25", "-M", "prepared", "--max-tries", "1000", "pangea"];
        let ran = Command::new(pgbench).args(at).args(script).output().unwrap();
        let text = shown(&ran);
        assert!(ran.status.success(), "{text}");
        assert!(text.contains("number of transactions actually processed: 100/100"), "{text}");
    });
}
