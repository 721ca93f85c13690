//! The procedure `sql.statement`: an autocommit statement as a program.
//!
//! Its arguments hold all that the statement may depend on beside the database: the text, the
//! parameters, the time, what is random, and the settings of the session. Every replica that runs
//! it plans it from the catalog at its place in the order, and computes the same bytes.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::txn::{Context, Procedure, Stop};

use crate::copy::Rows;
use crate::error::{Failure, SqlError, code};
use crate::exec::{self, Executed};
use crate::expr::Env;
use crate::plan::OutputColumn;
use crate::plan::cache::PlanCache;
use crate::sequence::Drawn;
use crate::types::datum::Datum;
use crate::types::zone::Zone;
use crate::types::{ColumnType, SqlType};
use crate::{rows, syntax};

/// The name that the registry knows the procedure by.
pub const STATEMENT: &str = "sql.statement";

/// The layout of arguments and results that this code writes.
const VERSION: u8 = 2;
/// The layout before there were roles: whoever came was trusted.
const VERSION_WITHOUT_ROLES: u8 = 1;
/// The layout of results.
const RESULT_VERSION: u8 = 1;
const BULK: u8 = 1;
const TRUSTED: u8 = 2;
const ROWS: u8 = 4;

/// Everything that a statement depends on beside the database.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub text: Arc<str>,
    pub param_types: Vec<SqlType>,
    pub env: Env,
    pub is_bulk: bool,
    /// What a COPY adds.
    pub rows: Option<Rows>,
}

/// What a statement returned.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Returned {
    pub columns: Vec<OutputColumn>,
    pub executed: Executed,
    /// What the session took last of each sequence that the statement used.
    pub current: Vec<(u32, i64)>,
    /// What it took last of any.
    pub last_number: Option<i64>,
}

impl Arguments {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.text.len() + 64);
        out.put_u8(VERSION);
        let bulk = if self.is_bulk { BULK } else { 0 };
        let rows = if self.rows.is_some() { ROWS } else { 0 };
        out.put_u8(bulk | rows | if self.env.is_trusted { TRUSTED } else { 0 });
        out.put_bytes(self.text.as_bytes());
        out.put_varint(self.param_types.len() as u64);
        self.param_types.iter().for_each(|base| out.put_u32(base.oid()));
        rows::encode(&self.env.params, &mut out);
        out.put_u64(self.env.now as u64);
        out.put_u64(self.env.seed.get());
        out.put_u64(self.env.row_seed);
        out.put_bytes(self.env.zone.name().as_bytes());
        out.put_bytes(self.env.user.as_bytes());
        out.put_bytes(self.env.database.as_bytes());
        out.put_bytes(self.env.session_user.as_bytes());
        out.put_varint(self.env.sequences.len() as u64);
        self.env.sequences.iter().for_each(|drawn| drawn.encode(&mut out));
        put_number(self.env.last_number.get(), &mut out);
        if let Some(rows) = &self.rows {
            rows.encode(&mut out);
        }
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut from = Reader::new(bytes);
        let (version, flags) = head(&mut from)?;
        let is_bulk = flags & BULK == BULK;
        let knows_roles = version != VERSION_WITHOUT_ROLES;
        let is_trusted = !knows_roles || flags & TRUSTED == TRUSTED;
        let text = Arc::from(text(&mut from)?);
        let param_types = (0..from.count("parameters")?)
            .map(|_| decode_type(&mut from))
            .collect::<Result<Vec<_>, _>>()?;
        let params = rows::decode_whole(param_types.iter().copied(), &mut from)?;
        let now = from.u64("time")? as i64;
        let seed = Cell::new(from.u64("seed")?);
        let row_seed = from.u64("seed")?;
        let zone = Zone::named(text_of(&mut from)?).map_err(|_| DecodeError::new("time zone"))?;
        let user: Arc<str> = Arc::from(text_of(&mut from)?);
        let database = Arc::from(text_of(&mut from)?);
        let session_user = match knows_roles {
            true => Arc::from(text_of(&mut from)?),
            false => user.clone(),
        };
        let sequences = (0..from.count("sequences")?)
            .map(|_| Drawn::decode(&mut from))
            .collect::<Result<Vec<_>, _>>()?;
        let last_number = Cell::new(number(&mut from)?);
        let rows = match flags & ROWS {
            ROWS => Some(Rows::decode(&mut from)?),
            _ => None,
        };
        let env = Env {
            params,
            now,
            statement_now: now,
            zone,
            user,
            session_user,
            is_trusted,
            database,
            seed,
            row_seed,
            sequences,
            last_number,
            set_sequences: RefCell::default(),
            settings: None,
            cursors: Arc::default(),
            set_settings: RefCell::default(),
            catalog: OnceCell::new(),
            deferred: None,
        };
        Ok(Self { text, param_types, env, is_bulk, rows })
    }
}

fn put_number(number: Option<i64>, out: &mut Vec<u8>) {
    out.put_u8(u8::from(number.is_some()));
    out.put_u64(number.unwrap_or_default() as u64);
}

fn number(from: &mut Reader<'_>) -> Result<Option<i64>, DecodeError> {
    let is_there = from.u8("number flag")? != 0;
    let number = from.u64("number")? as i64;
    Ok(is_there.then_some(number))
}

/// The layout and the flags.
fn head(from: &mut Reader<'_>) -> Result<(u8, u8), DecodeError> {
    let version = from.u8("statement version")?;
    if ![VERSION, VERSION_WITHOUT_ROLES].contains(&version) {
        return Err(DecodeError::new("statement version"));
    }
    Ok((version, from.u8("statement flags")?))
}

fn text_of<'a>(from: &mut Reader<'a>) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(from.bytes("text")?).map_err(|_| DecodeError::new("text"))
}

fn text(from: &mut Reader<'_>) -> Result<String, DecodeError> {
    text_of(from).map(str::to_owned)
}

fn decode_type(from: &mut Reader<'_>) -> Result<SqlType, DecodeError> {
    SqlType::from_oid(from.u32("type")?).ok_or(DecodeError::new("type"))
}

impl Returned {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u8(RESULT_VERSION);
        out.put_varint(self.executed.count);
        out.put_bytes(self.executed.notice.as_deref().unwrap_or_default().as_bytes());
        out.put_varint(self.columns.len() as u64);
        for column in &self.columns {
            out.put_bytes(column.name.as_bytes());
            out.put_u32(column.ty.base.oid());
            out.put_u32(column.ty.modifier as u32);
        }
        out.put_varint(self.executed.rows.len() as u64);
        self.executed.rows.iter().for_each(|row| rows::encode(row, &mut out));
        out.put_varint(self.current.len() as u64);
        for (id, number) in &self.current {
            out.put_u32(*id);
            out.put_u64(*number as u64);
        }
        put_number(self.last_number, &mut out);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut from = Reader::new(bytes);
        if from.u8("result version")? != RESULT_VERSION {
            return Err(DecodeError::new("result version"));
        }
        let count = from.varint("count")?;
        let notice = Some(text(&mut from)?).filter(|notice| !notice.is_empty());
        let columns = (0..from.count("columns")?)
            .map(|_| {
                let name = text(&mut from)?;
                let base = decode_type(&mut from)?;
                let modifier = from.u32("type modifier")? as i32;
                Ok(OutputColumn { name, ty: ColumnType { base, modifier } })
            })
            .collect::<Result<Vec<_>, DecodeError>>()?;
        let types = || columns.iter().map(|column: &OutputColumn| column.ty.base);
        let rows = (0..from.count("rows")?)
            .map(|_| rows::decode_whole(types(), &mut from))
            .collect::<Result<Vec<Vec<Datum>>, _>>()?;
        let current = (0..from.count("sequences")?)
            .map(|_| Ok((from.u32("sequence")?, from.u64("number")? as i64)))
            .collect::<Result<Vec<_>, DecodeError>>()?;
        let last_number = number(&mut from)?;
        Ok(Self { columns, executed: Executed { rows, count, notice }, current, last_number })
    }
}

/// The procedure. Plans of frequent statements are kept between runs.
#[derive(Debug, Default)]
pub(crate) struct Statement {
    plans: PlanCache,
}

impl Statement {
    fn execute(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Failure> {
        let mut args = Arguments::decode(args)?;
        let types: Vec<Option<SqlType>> = args.param_types.iter().copied().map(Some).collect();
        let parse = || {
            let parsed = syntax::parse(&args.text)?;
            let one: [_; 1] = parsed
                .try_into()
                .map_err(|_| SqlError::new(code::SYNTAX, "a program is one statement"))?;
            let [parsed] = one;
            Ok(parsed)
        };
        let planned = self.plans.plan(&args.text, &types, parse, cx)?;
        // The plan may name them in another order by now, or others.
        let drawn = std::mem::take(&mut args.env.sequences);
        args.env.sequences = planned.drawn(drawn);
        let executed = exec::run(&planned, args.rows.as_ref(), &args.env, cx)?;
        let (current, last_number) = (args.env.current(), args.env.last_number.get());
        let columns = planned.columns.clone();
        Ok(Returned { columns, executed, current, last_number }.encode())
    }
}

impl Procedure for Statement {
    fn name(&self) -> &str {
        STATEMENT
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        self.execute(args, cx).map_err(Stop::from)
    }

    fn is_bulk(&self, args: &[u8]) -> bool {
        head(&mut Reader::new(args)).is_ok_and(|(_, flags)| flags & BULK == BULK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_and_results_survive_their_encoding() {
        let env = Env {
            params: vec![Datum::Int(7), Datum::Null],
            now: -5,
            statement_now: -5,
            zone: Zone::named("Europe/Berlin").unwrap(),
            user: Arc::from("u"),
            session_user: Arc::from("s"),
            is_trusted: true,
            database: Arc::from("d"),
            seed: Cell::new(9),
            row_seed: 11,
            sequences: vec![Drawn { name: "s".to_owned(), id: 3, ..Drawn::default() }],
            last_number: Cell::new(Some(-1)),
            set_sequences: RefCell::default(),
            settings: None,
            cursors: Arc::default(),
            set_settings: RefCell::default(),
            catalog: OnceCell::new(),
            deferred: None,
        };
        let param_types = vec![SqlType::Int4, SqlType::Text];
        let mut rows = Rows::new(vec![SqlType::Int4.into()]);
        rows.push(&[Datum::Int(1)]);
        let (text, rows) = (Arc::from("select 1"), Some(rows));
        let args = Arguments { text, param_types, env, is_bulk: true, rows };
        let bytes = args.encode();
        let read = Arguments::decode(&bytes).unwrap();
        assert_eq!(format!("{read:?}"), format!("{args:?}"));
        assert!(Statement::default().is_bulk(&bytes));
        for len in 0..bytes.len() {
            assert!(Arguments::decode(&bytes[..len]).is_err(), "cut at {len}");
        }
        let columns = vec![OutputColumn { name: "a".to_owned(), ty: SqlType::Int4.into() }];
        let rows = vec![vec![Datum::Int(1)], vec![Datum::Null]];
        let executed = Executed { rows, count: 2, notice: Some("n".to_owned()) };
        let (current, last_number) = (vec![(1, -2)], Some(-2));
        let returned = Returned { columns, executed, current, last_number };
        assert_eq!(Returned::decode(&returned.encode()), Ok(returned));
    }
}
