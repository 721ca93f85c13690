//! The procedure `sql.statement`: an autocommit statement as a program.
//!
//! Its arguments contain every input of the statement except the database: the text, the
//! parameters, the time, the random seeds, and the settings of the session. Each replica that runs
//! the program plans the statement from the catalog at its place in the order, and computes the
//! same bytes.

use std::cell::Cell;
use std::sync::Arc;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::txn::{Adder, Context, Procedure, Stop};

use crate::copy::Rows;
use crate::delta::AddIntegers;
use crate::error::{Failure, SqlError, code};
use crate::exec::{self, Executed};
use crate::expr::Env;
use crate::notice::Notice;
use crate::plan::Planned;
use crate::plan::cache::PlanCache;
use crate::sequence::SequenceValues;
use crate::settings::search_path::DEFAULT;
use crate::types::datum::Datum;
use crate::types::zone::Zone;
use crate::types::{ColumnType, SqlType};
use crate::vocabulary::column::OutputColumn;
use crate::{rows, search_path, syntax};

/// The name of the procedure in the registry.
pub const STATEMENT: &str = "sql.statement";

/// The layout of arguments that this code writes.
const VERSION: u8 = 3;
/// The layout before schemas other than `public` existed.
const VERSION_WITHOUT_SCHEMAS: u8 = 2;
/// The layout before roles existed. Every user was trusted.
const VERSION_WITHOUT_ROLES: u8 = 1;
/// The layout of results.
const RESULT_VERSION: u8 = 2;
const BULK: u8 = 1;
const TRUSTED: u8 = 2;
const ROWS: u8 = 4;
const FILLS_LATER: u8 = 8;
/// Set if the search path is not the default.
const OWN_PATH: u8 = 16;

/// Every input of a statement except the database.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub text: Arc<str>,
    pub param_types: Vec<SqlType>,
    pub env: Env,
    pub is_bulk: bool,
    /// The rows that a COPY adds.
    pub rows: Option<Rows>,
}

/// The result of a statement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Returned {
    pub columns: Vec<OutputColumn>,
    pub executed: Executed,
    /// The session's last value of each sequence that the statement used.
    pub current: Vec<(u32, i64)>,
    /// The last value drawn from any sequence (`lastval`).
    pub last_number: Option<i64>,
}

impl Arguments {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Self { text, param_types, env, is_bulk, rows } = self;
        Self::encode_parts(text, param_types, env, (*is_bulk, rows.as_ref()))
    }

    pub(crate) fn encode_parts(
        text: &str,
        param_types: &[SqlType],
        env: &Env,
        (is_bulk, rows): (bool, Option<&Rows>),
    ) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len() + 64);
        out.put_u8(VERSION);
        let bulk = if is_bulk { BULK } else { 0 };
        let has_rows = if rows.is_some() { ROWS } else { 0 };
        let trusted = if env.is_trusted { TRUSTED } else { 0 };
        let later = if env.fills_later { FILLS_LATER } else { 0 };
        let has_path = *env.search_path != *DEFAULT;
        let own_path = if has_path { OWN_PATH } else { 0 };
        out.put_u8(bulk | has_rows | trusted | later | own_path);
        out.put_bytes(text.as_bytes());
        out.put_varint(param_types.len() as u64);
        param_types.iter().for_each(|base| out.put_u32(base.oid()));
        rows::encode(&env.params, &mut out);
        out.put_u64(env.now as u64);
        out.put_u64(env.seed.get());
        out.put_u64(env.row_seed);
        out.put_bytes(env.zone.name().as_bytes());
        out.put_bytes(env.user.as_bytes());
        out.put_bytes(env.database.as_bytes());
        out.put_bytes(env.session_user.as_bytes());
        if has_path {
            out.put_bytes(env.search_path.as_bytes());
        }
        out.put_varint(env.sequences.len() as u64);
        env.sequences.iter().for_each(|drawn| drawn.encode(&mut out));
        put_number(env.last_number.get(), &mut out);
        if let Some(rows) = rows {
            rows.encode(&mut out);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut from = Reader::new(bytes);
        let (version, flags) = head(&mut from)?;
        let is_it = |flag: u8| flags & flag == flag;
        let is_bulk = is_it(BULK);
        let knows_roles = version != VERSION_WITHOUT_ROLES;
        let is_trusted = !knows_roles || is_it(TRUSTED);
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
        let search_path = match version {
            VERSION if is_it(OWN_PATH) => Arc::from(text_of(&mut from)?),
            VERSION => Arc::from(DEFAULT),
            _ => Arc::from(search_path::BEFORE_SCHEMAS),
        };
        let sequences = (0..from.count("sequences")?)
            .map(|_| SequenceValues::decode(&mut from))
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
            search_path,
            seed,
            row_seed,
            sequences,
            last_number,
            fills_later: is_it(FILLS_LATER),
            ..Env::nobody()
        };
        Ok(Self { text, param_types, env, is_bulk, rows })
    }
}

impl Arguments {
    /// Plans the statement where it runs, on every replica, and assigns its sequence values.
    ///
    /// # Errors
    /// The errors of planning, and an error if the statement must run on only one node.
    pub(crate) fn plan(
        &mut self,
        plans: &PlanCache,
        cx: &mut dyn Context,
    ) -> Result<Arc<Planned>, Failure> {
        let types: Vec<Option<SqlType>> = self.param_types.iter().copied().map(Some).collect();
        let parse = || {
            let parsed = syntax::parse(&self.text)?;
            let one: [_; 1] = parsed
                .try_into()
                .map_err(|_| SqlError::new(code::SYNTAX, "a program is one statement"))?;
            let [parsed] = one;
            Ok(parsed)
        };
        let path = self.env.path_setting();
        let planned = plans.plan(&self.text, &types, &path, parse, cx)?;
        // The session has checked this, but the tables have changed since.
        if planned.is_write() && planned.plan.is_certified() {
            let message = "the statement must run on one node only";
            return Err(SqlError::new(code::NOT_REPEATABLE, message).into());
        }
        // The plan may list the sequences in another order by now, or list other sequences.
        let drawn = std::mem::take(&mut self.env.sequences);
        self.env.sequences = planned.drawn(drawn);
        Ok(planned)
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

/// Decodes the layout and the flags.
fn head(from: &mut Reader<'_>) -> Result<(u8, u8), DecodeError> {
    let version = from.u8("statement version")?;
    if ![VERSION, VERSION_WITHOUT_SCHEMAS, VERSION_WITHOUT_ROLES].contains(&version) {
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
        out.put_varint(self.executed.notices.len() as u64);
        self.executed.notices.iter().for_each(|notice| notice.encode(&mut out));
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
        let notices = (0..from.count("notices")?)
            .map(|_| Notice::decode(&mut from))
            .collect::<Result<Vec<_>, DecodeError>>()?;
        let columns = (0..from.count("columns")?)
            .map(|_| {
                let name = text(&mut from)?;
                let base = decode_type(&mut from)?;
                let modifier = from.u32("type modifier")? as i32;
                Ok(OutputColumn::new(name, ColumnType { base, modifier }))
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
        Ok(Self { columns, executed: Executed { rows, count, notices }, current, last_number })
    }
}

/// The procedure. Plans of frequent statements are cached between runs.
#[derive(Debug, Default)]
pub(crate) struct Statement {
    plans: PlanCache,
}

impl Statement {
    fn execute(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Failure> {
        let mut args = Arguments::decode(args)?;
        let planned = args.plan(&self.plans, cx)?;
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

    fn adders(&self) -> Vec<Arc<dyn Adder>> {
        vec![Arc::new(AddIntegers)]
    }

    fn is_bulk(&self, args: &[u8]) -> bool {
        head(&mut Reader::new(args)).is_ok_and(|(_, flags)| flags & BULK == BULK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::QualifiedName;

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
            search_path: Arc::from("p"),
            seed: Cell::new(9),
            row_seed: 11,
            sequences: vec![SequenceValues {
                name: QualifiedName::new("p", "s"),
                id: 3,
                ..SequenceValues::default()
            }],
            last_number: Cell::new(Some(-1)),
            fills_later: true,
            ..Env::nobody()
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
        let default = Env { search_path: Arc::from(DEFAULT), ..args.env.clone() };
        let mut older = Arguments { env: default, ..args }.encode();
        let path = |bytes: &[u8]| Arguments::decode(bytes).unwrap().env.search_path;
        assert_eq!(*path(&older), *DEFAULT);
        // Before schemas existed, arguments contained no path and names were in `public`.
        older[0] = VERSION_WITHOUT_SCHEMAS;
        assert_eq!(*path(&older), *search_path::BEFORE_SCHEMAS);
        let columns = vec![OutputColumn::new("a", SqlType::Int4)];
        let rows = vec![vec![Datum::Int(1)], vec![Datum::Null]];
        let executed = Executed { rows, count: 2, notices: vec![Notice::plain("n")] };
        let (current, last_number) = (vec![(1, -2)], Some(-2));
        let returned = Returned { columns, executed, current, last_number };
        assert_eq!(Returned::decode(&returned.encode()), Ok(returned));
    }
}
