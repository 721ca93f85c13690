//! Execution of CREATE PROCEDURE and DROP PROCEDURE.

use std::collections::BTreeSet;

use pangea_core::txn::Context;

use super::{Executed, alter_owner, roles};
use crate::authorization::{ordinary, privileged};
use crate::catalog::procedure::{self, Mode, Procedure};
use crate::catalog::{self, QualifiedName};
use crate::error::{Failure, SqlError, code};
use crate::expr::Env;
use crate::plan::{CreateProcedure, DropProcedures, OwnProcedure, Utility, utilities};
use crate::syntax::Written;
use crate::types::SqlType;

utilities! {
    CreateProcedure: "CREATE PROCEDURE", create;
    OwnProcedure: "ALTER PROCEDURE", own;
    DropProcedures: "DROP PROCEDURE", drop;
}

fn create(create: &CreateProcedure, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let mut procedure = create.procedure.clone();
    let mut all = procedure::find(&procedure.name, cx)?;
    let is_same = |known: &Procedure| known.identity() == procedure.identity();
    match all.iter().position(is_same) {
        None => {
            procedure.id = catalog::next_table_id(cx)?.0;
            procedure.owner = roles::owner_of_new(env, cx)?;
            all.push(procedure);
        }
        Some(_) if !create.is_replace => {
            let name = &procedure.name;
            let message = format!("function \"{name}\" already exists with same argument types");
            return Err(SqlError::new(code::DUPLICATE_FUNCTION, message).into());
        }
        Some(at) => {
            check_owner(&all[at], env, cx)?;
            check_replaced(&all[at], &procedure)?;
            (procedure.id, procedure.owner) = (all[at].id, all[at].owner.clone());
            all[at] = procedure;
        }
    }
    procedure::put(&create.procedure.name, &all, cx)?;
    Ok(Executed::default())
}

/// Checks that a replacement has the same output parameters, and compatible input parameters.
fn check_replaced(before: &Procedure, after: &Procedure) -> Result<(), SqlError> {
    let invalid = |message: String, hint: String| {
        Err(SqlError::new(code::INVALID_FUNCTION, message).with_hint(hint))
    };
    let signature = before.signature();
    let hint = format!("Use DROP PROCEDURE {signature} first.");
    let outputs = |procedure: &Procedure| {
        let out = procedure.parameters.iter().filter(|it| it.mode.is_out());
        out.map(|it| (it.name.clone(), it.ty.base)).collect::<Vec<_>>()
    };
    if outputs(before).is_empty() != outputs(after).is_empty() {
        let message = "cannot change whether a procedure has output parameters";
        return invalid(message.to_owned(), hint);
    }
    if outputs(before) != outputs(after) {
        let message = "cannot change return type of existing function";
        let error = SqlError::new(code::INVALID_FUNCTION, message).with_hint(hint);
        return Err(error.with_detail("Row type defined by OUT parameters is different."));
    }
    for (old, new) in before.parameters.iter().zip(&after.parameters) {
        if old.mode != Mode::Out && !old.name.is_empty() && old.name != new.name {
            let message = format!("cannot change name of input parameter \"{}\"", old.name);
            return invalid(message, hint);
        }
        if old.default.is_some() && new.default.is_none() {
            let message = "cannot remove parameter defaults from existing function";
            return invalid(message.to_owned(), hint);
        }
    }
    Ok(())
}

fn check_owner(procedure: &Procedure, env: &Env, cx: &mut dyn Context) -> Result<(), Failure> {
    let Some(role) = ordinary(env.current_user(), cx)? else { return Ok(()) };
    if privileged(&role.name, cx)?.contains(&procedure.owner) {
        return Ok(());
    }
    let message = format!("must be owner of procedure {}", procedure.name);
    Err(SqlError::new(code::NO_PRIVILEGE, message).into())
}

fn drop(drop: &DropProcedures, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let mut notices = Vec::new();
    for (meant, types) in &drop.named {
        let shown = shown(&meant.written, types.as_deref());
        let message = match types {
            _ if drop.if_exists => format!("procedure {shown} does not exist"),
            Some(_) => format!("procedure {shown} does not exist"),
            None => format!("could not find a procedure named \"{}\"", meant.written),
        };
        let error = SqlError::new(code::UNDEFINED_FUNCTION, message);
        let Some(name) = meant.existing(drop.if_exists, error.clone(), &mut notices)? else {
            continue;
        };
        let mut all = procedure::find(name, cx)?;
        let Some(at) = one_of(&all, name, types.as_deref())? else { return Err(error.into()) };
        check_owner(&all[at], env, cx)?;
        all.remove(at);
        procedure::put(name, &all, cx)?;
    }
    Ok(Executed { notices, ..Executed::default() })
}

/// Runs ALTER PROCEDURE .. OWNER TO.
fn own(own: &OwnProcedure, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let OwnProcedure { meant, types, owner } = own;
    let message = match types {
        Some(_) => format!("procedure {} does not exist", shown(&meant.written, types.as_deref())),
        None => format!("could not find a procedure named \"{}\"", meant.written),
    };
    let error = SqlError::new(code::UNDEFINED_FUNCTION, message);
    let Some(name) = meant.existing(false, error.clone(), &mut Vec::new())? else {
        return Err(error.into());
    };
    let mut all = procedure::find(name, cx)?;
    let at = one_of(&all, name, types.as_deref())?.ok_or(error)?;
    check_owner(&all[at], env, cx)?;
    all[at].owner = alter_owner::new_owner(owner, name, env, cx)?;
    procedure::put(name, &all, cx)?;
    Ok(Executed::default())
}

/// Finds a procedure among those of a name. Without `types` the name must be unique.
fn one_of(
    all: &[Procedure],
    name: &QualifiedName,
    types: Option<&[SqlType]>,
) -> Result<Option<usize>, SqlError> {
    match types {
        Some(types) => Ok(all.iter().position(|known| known.is_given(types))),
        None if all.len() > 1 => {
            let message = format!("procedure name \"{name}\" is not unique");
            let hint = "Specify the argument list to select the procedure unambiguously.";
            Err(SqlError::new(code::AMBIGUOUS_FUNCTION, message).with_hint(hint))
        }
        None => Ok((!all.is_empty()).then_some(0)),
    }
}

fn shown(name: &Written, types: Option<&[SqlType]>) -> String {
    let types = types.unwrap_or_default().iter();
    let types: Vec<String> = types.map(ToString::to_string).collect();
    format!("{name}({})", types.join(","))
}

/// Changes the owner of all procedures of a role.
pub(super) fn change_owner(from: &str, to: &str, cx: &mut dyn Context) -> Result<(), Failure> {
    let mut changed = BTreeSet::new();
    for procedure in procedure::all(cx)?.into_iter().filter(|it| it.owner == from) {
        changed.insert(procedure.name);
    }
    for name in changed {
        let mut all = procedure::find(&name, cx)?;
        for procedure in all.iter_mut().filter(|it| it.owner == from) {
            procedure.owner = to.to_owned();
        }
        procedure::put(&name, &all, cx)?;
    }
    Ok(())
}
