//! TOML as used by plans: each value with its line, in the order of the file.

use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::options::Value;
use crate::plan_error::{PlanError, unknown};

/// An option with its value and line.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// The option's name.
    pub name: String,
    /// The option's value.
    pub value: Value,
    /// The line in the plan.
    pub line: usize,
}

/// The values that an option takes, one after the other.
pub struct Choices {
    /// At least one value.
    pub values: Vec<Bound>,
    /// Whether they were given as a list, possibly of one value.
    pub is_list: bool,
}

/// A key with its value.
#[derive(Clone, Copy)]
pub struct Item<'t> {
    text: &'t str,
    /// The key.
    pub key: &'t str,
    /// The line of the key, from 1.
    pub line: usize,
    value: &'t Spanned<DeValue<'t>>,
}

/// A table.
#[derive(Clone)]
pub struct Table<'t> {
    /// The name of the table in the plan: `[base]`.
    name: String,
    line: usize,
    items: Vec<Item<'t>>,
}

/// Parses a file.
///
/// # Errors
/// If it is not valid TOML.
pub fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, PlanError> {
    DeTable::parse(text).map_err(|error| {
        let place = error.span().map_or(0, |span| span.start);
        PlanError::new(line_of(text, place), error.message().trim())
    })
}

fn line_of(text: &str, place: usize) -> usize {
    1 + text.bytes().take(place).filter(|byte| *byte == b'\n').count()
}

impl<'t> Table<'t> {
    /// Creates a table of a file.
    pub fn new(text: &'t str, name: &str, line: usize, table: &'t DeTable<'t>) -> Self {
        let mut entries: Vec<_> = table.iter().collect();
        // The parser sorts by name, but the order of the file determines the order of the axes.
        entries.sort_by_key(|(key, _)| key.span().start);
        let item = |(key, value): (&'t Spanned<_>, &'t Spanned<DeValue<'t>>)| {
            let line = line_of(text, key.span().start);
            let key: &'t std::borrow::Cow<'t, str> = key.get_ref();
            Item { text, key, line, value }
        };
        let items = entries.into_iter().map(item).collect();
        Self { name: name.to_owned(), line, items }
    }

    /// Returns the line at which the table begins, or that of its first key.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns the items of the table.
    pub fn items(&self) -> impl Iterator<Item = Item<'t>> {
        self.items.iter().copied()
    }

    /// Returns the value of a key.
    pub fn find(&self, key: &str) -> Option<Item<'t>> {
        self.items().find(|item| item.key == key)
    }

    /// Rejects unknown keys.
    ///
    /// # Errors
    /// The first unknown key.
    pub fn allow(&self, keys: &[&str]) -> Result<(), PlanError> {
        let Some(item) = self.items().find(|item| !keys.contains(&item.key)) else {
            return Ok(());
        };
        let what = format!("key in {}", self.name);
        Err(PlanError::new(item.line, unknown(&what, item.key, keys.iter().copied())))
    }

    /// Returns the text of a required key.
    ///
    /// # Errors
    /// If it is missing or not a text.
    pub fn text(&self, key: &str) -> Result<String, PlanError> {
        let missing = || PlanError::new(self.line, format!("{} has no {key}", self.name));
        self.find(key).ok_or_else(missing)?.text()
    }

    /// Returns all options that the table sets. Those in nested tables are named by their path.
    ///
    /// # Errors
    /// If a value is invalid for an option.
    pub fn options(&self, except: &[&str]) -> Result<Vec<Bound>, PlanError> {
        let mut found = Vec::new();
        for item in self.items().filter(|item| !except.contains(&item.key)) {
            item.leaves("", &mut |name, item| {
                found.push(Bound { name, value: item.value()?, line: item.line });
                Ok(())
            })?;
        }
        Ok(found)
    }
}

impl Table<'_> {
    /// Returns all options that the table sets, each to one value or to several.
    ///
    /// # Errors
    /// If a value is invalid for an option, or a list is empty or has a duplicate.
    pub fn choices(&self, except: &[&str]) -> Result<Vec<Choices>, PlanError> {
        let mut found = Vec::new();
        for item in self.items().filter(|item| !except.contains(&item.key)) {
            item.leaves("", &mut |name, item| {
                let is_list = item.value.get_ref().as_array().is_some();
                let values = match is_list {
                    true => item.values(&name)?,
                    false => vec![Bound { name, value: item.value()?, line: item.line }],
                };
                found.push(Choices { values, is_list });
                Ok(())
            })?;
        }
        Ok(found)
    }
}

impl<'t> Item<'t> {
    /// Returns the values of a list, each as that of an option.
    ///
    /// # Errors
    /// If it is not a list, is empty, or has a duplicate.
    pub fn values(&self, name: &str) -> Result<Vec<Bound>, PlanError> {
        let mut values: Vec<Bound> = Vec::new();
        for element in self.each()? {
            let (value, line) = (element.value()?, element.line);
            if values.iter().any(|bound| bound.value == value) {
                return Err(PlanError::new(line, format!("{name} has the value {value} twice")));
            }
            values.push(Bound { name: name.to_owned(), value, line });
        }
        if values.is_empty() {
            let message = format!("{name} has no values, so there would be no run");
            return Err(PlanError::new(self.line, message));
        }
        Ok(values)
    }

    fn wrong(&self, expected: &str) -> PlanError {
        let found = self.value.get_ref().type_str();
        PlanError::new(self.line, format!("{} must be {expected}, not {found}", self.key))
    }

    /// Calls `each` for every value below this key that is not a table, with its path.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn leaves(
        self,
        above: &str,
        each: &mut dyn FnMut(String, Item<'t>) -> Result<(), PlanError>,
    ) -> Result<(), PlanError> {
        let name = format!("{above}{}", self.key);
        let Some(table) = self.value.get_ref().as_table() else { return each(name, self) };
        let below = Table::new(self.text, &format!("[{name}]"), self.line, table);
        below.items().try_for_each(|item| item.leaves(&format!("{name}."), each))
    }

    /// Returns the value as a text.
    ///
    /// # Errors
    /// If it is not a text.
    pub fn text(&self) -> Result<String, PlanError> {
        let text = self.value.get_ref().as_str();
        Ok(text.ok_or_else(|| self.wrong("a string"))?.trim().to_owned())
    }

    /// Returns the value as a number.
    ///
    /// # Errors
    /// If it is not a number.
    pub fn number(&self) -> Result<f64, PlanError> {
        number(self.value.get_ref()).ok_or_else(|| self.wrong("a number"))
    }

    /// Returns the value as a whole number within limits.
    ///
    /// # Errors
    /// If it is not a whole number within the limits.
    pub fn count(&self, least: u32, most: u32) -> Result<u32, PlanError> {
        let number = self.number()?;
        let is_one =
            number.fract() == 0.0 && (f64::from(least)..=f64::from(most)).contains(&number);
        let wrong = || self.wrong(&format!("a whole number from {least} to {most}"));
        if is_one { Ok(number as u32) } else { Err(wrong()) }
    }

    /// Returns the value as one of a few words.
    ///
    /// # Errors
    /// If it is not one of them.
    pub fn one_of<T>(
        &self,
        named: impl Fn(&str) -> Option<T>,
        all: &[&str],
    ) -> Result<T, PlanError> {
        let text = self.text()?;
        let what = || PlanError::new(self.line, unknown(self.key, &text, all.iter().copied()));
        named(&text).ok_or_else(what)
    }

    /// Returns the value as one text or several.
    ///
    /// # Errors
    /// If it is neither.
    pub fn texts(&self) -> Result<Vec<String>, PlanError> {
        match self.value.get_ref().as_array() {
            None => Ok(vec![self.text()?]),
            Some(_) => self.each()?.iter().map(Item::text).collect(),
        }
    }

    /// Returns the value as two numbers.
    ///
    /// # Errors
    /// If it is not two numbers.
    pub fn pair(&self) -> Result<(f64, f64), PlanError> {
        match &self.each()?[..] {
            [x, y] => Ok((x.number()?, y.number()?)),
            _ => Err(self.wrong("two numbers")),
        }
    }

    /// Returns the elements of a list.
    ///
    /// # Errors
    /// If it is not a list.
    pub fn each(&self) -> Result<Vec<Self>, PlanError> {
        let list = self.value.get_ref().as_array().ok_or_else(|| self.wrong("a list"))?;
        let element = |value: &'t Spanned<DeValue<'t>>| {
            let line = line_of(self.text, value.span().start);
            Self { line, value, ..*self }
        };
        Ok(list.iter().map(element).collect())
    }

    /// Returns the value as a table.
    ///
    /// # Errors
    /// If it is not a table.
    pub fn table(&self, name: &str) -> Result<Table<'t>, PlanError> {
        let table = self.value.get_ref().as_table();
        let table = table.ok_or_else(|| self.wrong("a table"))?;
        Ok(Table::new(self.text, name, self.line, table))
    }

    /// Returns the tables under one name, as written with `[[name]]`.
    ///
    /// # Errors
    /// If it is not a list of tables.
    pub fn tables(&self) -> Result<Vec<Table<'t>>, PlanError> {
        let name = format!("[[{}]]", self.key);
        self.each()?.iter().map(|element| element.table(&name)).collect()
    }

    /// Returns the value of an option.
    ///
    /// # Errors
    /// If it is a list, a table or a date.
    pub fn value(&self) -> Result<Value, PlanError> {
        let value = self.value.get_ref();
        if let Some(is_there) = value.as_bool() {
            return Ok(Value::Flag(is_there));
        }
        if let Some(text) = value.as_str() {
            return Ok(Value::Text(text.to_owned()));
        }
        let wrong = || {
            self.wrong(
                "a number, a string, true or false (lists are only for [sweep], cases and series)",
            )
        };
        number(value).map(Value::Number).ok_or_else(wrong)
    }
}

fn number(value: &DeValue<'_>) -> Option<f64> {
    if let Some(integer) = value.as_integer() {
        return f64::from_str(integer.as_str()).ok().filter(|_| integer.radix() == 10);
    }
    value.as_float().and_then(|float| f64::from_str(float.as_str()).ok())
}
