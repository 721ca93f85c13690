//! The grammar of blocks: declarations, exception handlers and GET DIAGNOSTICS.

use pangea_core::txn::SqlState;
use sqlparser::tokenizer::Token;

use super::body::{Block, Condition, DeclaredType, Diagnostic, Does, Handler};
use super::conditions;
use super::fragment::Fragment;
use super::grammar::Grammar;
use crate::catalog::Enums;
use crate::error::{SqlError, code};
use crate::expr::bind::column_type;
use crate::syntax::{Written, name, words::word};
use crate::types::SqlType;

impl Grammar<'_> {
    pub(super) fn block(&mut self, label: Option<String>) -> Result<Block, SqlError> {
        let before = self.visible.len();
        let mut declared = Vec::new();
        while self.words.take("DECLARE") {
            while !self.is_next("BEGIN") && !self.is_next("DECLARE") {
                declared.push(self.declaration(label.as_deref(), before)?);
            }
        }
        self.words.expect("BEGIN")?;
        self.labels.push((label.clone(), false));
        let steps = self.steps(&["END", "EXCEPTION"])?;
        let (mut handlers, mut error) = (Vec::new(), None);
        if self.words.take("EXCEPTION") {
            let text = DeclaredType::Known(SqlType::Text.into());
            let mark = self.visible.len();
            let state = self.declare(None, "sqlstate", text.clone(), (true, false));
            let message = self.declare(None, "sqlerrm", text, (true, false));
            error = Some((state, message));
            self.handlers += 1;
            while self.words.take("WHEN") {
                let conditions = self.conditions()?;
                self.words.expect("THEN")?;
                let steps = self.steps(&["WHEN", "END"])?;
                handlers.push(Handler { conditions, steps });
            }
            self.handlers -= 1;
            self.visible.truncate(mark);
        }
        self.words.expect("END")?;
        self.labels.pop();
        self.end_label(label.as_deref())?;
        self.visible.truncate(before);
        Ok(Block { label, declared, steps, handlers, error })
    }

    fn conditions(&mut self) -> Result<Vec<Condition>, SqlError> {
        let mut found = Vec::new();
        loop {
            if self.words.take("SQLSTATE") {
                found.push(Condition::Code(self.state()?));
            } else if self.words.take("OTHERS") {
                found.push(Condition::Others);
            } else {
                let place = self.words.place();
                let given = name(&self.words.ident()?);
                let known = conditions::code_of(&given).ok_or_else(|| {
                    let message = format!("unrecognized exception condition \"{given}\"");
                    SqlError::new(code::UNDEFINED_OBJECT, message).at(self.words.source, place)
                })?;
                found.push(Condition::Code(known));
            }
            if !self.words.take("OR") {
                return Ok(found);
            }
        }
    }

    /// `'22012'`
    pub(super) fn state(&mut self) -> Result<SqlState, SqlError> {
        let Some(Token::SingleQuotedString(text)) = self.words.token() else {
            return Err(self.words.unexpected());
        };
        let Some(state) = conditions::state(text) else {
            return Err(self.wrong(code::SYNTAX, "invalid SQLSTATE code"));
        };
        self.words.at += 1;
        Ok(state)
    }

    /// `name [CONSTANT] type [NOT NULL] [:= value];`
    fn declaration(
        &mut self,
        label: Option<&str>,
        before: usize,
    ) -> Result<(usize, Option<Fragment>), SqlError> {
        let given = name(&self.words.ident()?);
        if self.visible[before..].iter().any(|known| known.name == given) {
            let message = format!("duplicate declaration at or near \"{given}\"");
            return Err(self.wrong(code::SYNTAX, message));
        }
        if self.words.take("ALIAS FOR") {
            return Err(SqlError::unsupported("ALIAS FOR"));
        }
        let is_constant = self.words.take("CONSTANT");
        if self.words.take_one(&["CURSOR", "NO SCROLL CURSOR", "SCROLL CURSOR"]).is_some() {
            return Err(SqlError::unsupported("a cursor in a procedure"));
        }
        let end = self.words.end_of_item(&[Token::SemiColon]);
        let is_end = |token: &Token| {
            let is_value = matches!(token, Token::Assignment | Token::Eq);
            is_value || matches!(word(token).as_deref(), Some("NOT" | "DEFAULT" | "COLLATE"))
        };
        let rest = &self.words.tokens[self.words.at..end];
        let type_end = rest.iter().position(|token| is_end(&token.token));
        let type_end = self.words.at + type_end.unwrap_or(rest.len());
        let ty = self.declared_type(type_end)?;
        if self.words.take("COLLATE") {
            return Err(SqlError::unsupported("COLLATE of a variable"));
        }
        let is_not_null = self.words.take("NOT NULL");
        let has_value = self.words.take_token(&Token::Assignment)
            || self.words.take_token(&Token::Eq)
            || self.words.take("DEFAULT");
        let value = match has_value {
            true => Some(self.expression(end)?),
            false => None,
        };
        self.semicolon()?;
        if is_not_null && value.is_none() {
            let message = format!(
                "variable \"{given}\" must have a default value, since it's declared NOT NULL"
            );
            return Err(self.wrong(code::NULL_NOT_ALLOWED, message));
        }
        Ok((self.declare(label, &given, ty, (is_constant, is_not_null)), value))
    }

    fn declared_type(&mut self, end: usize) -> Result<DeclaredType, SqlError> {
        let is_reference =
            end >= self.words.at + 2 && self.words.tokens[end - 2].token == Token::Mod;
        if is_reference {
            let last = word(&self.words.tokens[end - 1].token);
            let mut parts = vec![name(&self.words.ident()?)];
            while self.words.take_token(&Token::Period) {
                parts.push(name(&self.words.ident()?));
            }
            if self.words.at != end - 2 {
                return Err(self.words.unexpected());
            }
            self.words.at = end;
            return match (last.as_deref(), parts.as_slice()) {
                (Some("ROWTYPE"), [table]) => Ok(DeclaredType::Row(Written::plain(table))),
                (Some("ROWTYPE"), [schema, table]) => {
                    let (schema, name) = (Some(schema.clone()), table.clone());
                    Ok(DeclaredType::Row(Written { schema, name }))
                }
                (Some("TYPE"), [variable]) => {
                    let found = self.visible.iter().rev().find(|it| it.name == *variable);
                    let slot = found.map(|it| it.slot).ok_or_else(|| {
                        let message = format!("variable \"{variable}\" does not exist");
                        self.wrong(code::UNDEFINED_OBJECT, message)
                    })?;
                    Ok(self.variables[slot].ty.clone())
                }
                (Some("TYPE"), [table, column]) => {
                    Ok(DeclaredType::Column(Written::plain(table), column.clone()))
                }
                (Some("TYPE"), [schema, table, column]) => {
                    let (schema, name) = (Some(schema.clone()), table.clone());
                    Ok(DeclaredType::Column(Written { schema, name }, column.clone()))
                }
                _ => Err(self.words.unexpected()),
            };
        }
        if self.words.at + 1 == end && self.words.take("RECORD") {
            return Ok(DeclaredType::Record);
        }
        if self.words.at == end {
            return Err(self.words.unexpected());
        }
        let ty = self.words.type_between(self.words.at, end)?;
        self.words.at = end;
        match column_type(&ty, &Enums::default()) {
            Ok(known) => Ok(DeclaredType::Known(known)),
            Err(error) if error.missing_type().is_some() => Ok(DeclaredType::Named(Box::new(ty))),
            Err(error) => Err(error),
        }
    }

    pub(super) fn diagnostics(&mut self) -> Result<Does, SqlError> {
        let is_stacked = self.words.take("STACKED");
        let _ = !is_stacked && self.words.take("CURRENT");
        if is_stacked && self.handlers == 0 {
            let message = "GET STACKED DIAGNOSTICS cannot be used outside an exception handler";
            return Err(self.wrong(code::STACKED_DIAGNOSTICS, message));
        }
        self.words.expect("DIAGNOSTICS")?;
        let mut items = Vec::new();
        loop {
            let target = self.target()?;
            if !self.words.take_token(&Token::Assignment) && !self.words.take_token(&Token::Eq) {
                return Err(self.words.unexpected());
            }
            let known = [
                ("ROW_COUNT", Diagnostic::RowCount, false),
                ("RETURNED_SQLSTATE", Diagnostic::State, true),
                ("MESSAGE_TEXT", Diagnostic::Message, true),
                ("PG_EXCEPTION_DETAIL", Diagnostic::Detail, true),
                ("PG_EXCEPTION_HINT", Diagnostic::Hint, true),
            ];
            let given = name(&self.words.ident()?).to_uppercase();
            let found = known.iter().find(|(name, ..)| *name == given);
            match found {
                Some((_, item, is_of_error)) if *is_of_error == is_stacked => {
                    items.push((target, *item));
                }
                Some(_) => {
                    let which = if is_stacked { "STACKED" } else { "CURRENT" };
                    let message = format!(
                        "diagnostics item {given} is not allowed in GET {which} DIAGNOSTICS"
                    );
                    return Err(self.wrong(code::SYNTAX, message));
                }
                None => {
                    let feature = format!("the diagnostics item {given}");
                    return Err(SqlError::unsupported(feature));
                }
            }
            if !self.words.take_token(&Token::Comma) {
                break;
            }
        }
        self.semicolon()?;
        Ok(Does::Diagnostics(items))
    }
}
