//! Chooses the mutant of this process. `./mutate` adds this file to the copy of `core` that it
//! builds, with the number of mutants at its end.
//!
//! `PANGEA_MUTANT` has the number of a mutant, or `record`. Then the process appends the number of
//! each mutant that it reaches to the file `PANGEA_MUTANT_REACHED`.

use std::fs::File;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const NONE: u32 = u32::MAX - 2;
const RECORD: u32 = u32::MAX - 1;
const UNREAD: u32 = u32::MAX;

static CHOSEN: AtomicU32 = AtomicU32::new(UNREAD);
static REACHED: [AtomicBool; MUTANTS] = [const { AtomicBool::new(false) }; MUTANTS];
static FILE: Mutex<Option<File>> = Mutex::new(None);

/// Returns whether this mutant is the chosen one.
#[inline(always)]
pub fn on(mutant: u32) -> bool {
    let chosen = CHOSEN.load(Ordering::Relaxed);
    chosen == mutant || (chosen >= RECORD && read_or_record(mutant))
}

#[cold]
#[inline(never)]
fn read_or_record(mutant: u32) -> bool {
    if CHOSEN.load(Ordering::Relaxed) == UNREAD {
        let chosen = match std::env::var("PANGEA_MUTANT") {
            Err(_) => NONE,
            Ok(text) if text == "record" => RECORD,
            Ok(text) => text.parse().expect("PANGEA_MUTANT is a number"),
        };
        CHOSEN.store(chosen, Ordering::Relaxed);
        return on(mutant);
    }
    if !REACHED[mutant as usize].swap(true, Ordering::Relaxed) {
        let mut file = FILE.lock().unwrap();
        let file = file.get_or_insert_with(|| {
            let path = std::env::var("PANGEA_MUTANT_REACHED").expect("a file for the numbers");
            File::options().create(true).append(true).open(path).unwrap()
        });
        file.write_all(format!("{mutant}\n").as_bytes()).unwrap();
    }
    false
}

