//! Random queries, combined from random parts. One seed yields one statement.

use fastrand::Rng;

use super::kinds::{AGGREGATES, Kind, ORDERED_AGGREGATES, PARTS};
use super::tables::TABLES;

/// A column that an expression may reference.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name, qualified with that of its relation.
    pub name: String,
    /// Its type.
    pub kind: Kind,
    /// Whether all rows of the relation have distinct values in it.
    pub is_unique: bool,
}

/// A statement.
#[derive(Debug)]
pub struct Generated {
    /// Its text.
    pub sql: String,
    /// Whether the order of its rows is fully determined.
    pub is_ordered: bool,
}

/// Generates statements.
pub struct Generator {
    pub(super) rng: Rng,
    names: usize,
    /// Number of queries that may still be nested in others.
    queries: usize,
}

/// Maximum number of queries inside of one statement, so that generation ends.
const QUERIES_MAX: usize = 4;

/// Maximum number of columns of a nested query.
const COLUMNS_MAX: usize = 3;

impl Generator {
    /// Returns the generator of one statement.
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::with_seed(seed), names: 0, queries: QUERIES_MAX }
    }

    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.rng.u32(..100) < percent
    }

    pub(super) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.rng.usize(..of.len())]
    }

    pub(super) fn kind(&mut self) -> Kind {
        // Most columns are numbers or texts.
        if self.chance(40) {
            *self.pick(&[Kind::Int, Kind::Text, Kind::Numeric])
        } else {
            *self.pick(&Kind::ALL)
        }
    }

    fn kinds(&mut self) -> Vec<Kind> {
        let count = self.rng.usize(1..=COLUMNS_MAX);
        (0..count).map(|_| self.kind()).collect()
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("q{}", self.names)
    }

    fn may_nest(&mut self, depth: u32) -> bool {
        let may = depth > 0 && self.queries > 0;
        self.queries -= usize::from(may);
        may
    }

    /// Returns a query with or without ORDER BY.
    pub fn statement(&mut self) -> Generated {
        let kinds = self.kinds();
        let mut sql = String::new();
        let mut with = Vec::new();
        if self.chance(15) && self.may_nest(2) {
            let kinds = self.kinds();
            let (name, query) = (self.name(), self.query(&kinds, &[], 1));
            let columns = output_columns(&kinds, &name);
            let names: Vec<&str> = columns.iter().map(|column| short(&column.name)).collect();
            sql = format!("with {name} ({}) as ({query}) ", names.join(", "));
            with.push((name, columns));
        }
        let query = match with.pop() {
            Some((name, columns)) => self.select_from(&kinds, name, columns, &[], 2),
            None => self.query(&kinds, &[], 2),
        };
        sql.push_str(&query);
        if self.chance(50) {
            return Generated { sql, is_ordered: false };
        }
        // Orders by every column. Rows that tie are identical, except for equal values that are
        // displayed differently.
        let orders = ["", " desc", " nulls first", " desc nulls last"];
        let keys: Vec<String> =
            (1..=kinds.len()).map(|at| format!("{at}{}", self.pick(&orders))).collect();
        sql.push_str(&format!(" order by {}", keys.join(", ")));
        let is_ordered = kinds.iter().all(|kind| kind.is_shown_alike());
        if is_ordered {
            if self.chance(40) {
                sql.push_str(&format!(" limit {}", self.rng.u32(..8)));
            }
            if self.chance(20) {
                sql.push_str(&format!(" offset {}", self.rng.u32(..4)));
            }
        }
        Generated { sql, is_ordered }
    }

    /// Returns a query with columns of these kinds. It may reference columns of the enclosing
    /// queries.
    fn query(&mut self, kinds: &[Kind], outer: &[Column], depth: u32) -> String {
        if depth > 0 && self.chance(12) && self.may_nest(depth) {
            let left = self.select(kinds, outer, depth - 1);
            let right = self.select(kinds, outer, 0);
            let operator = *self.pick(&["union", "union all", "intersect", "except", "except all"]);
            return format!("{left} {operator} {right}");
        }
        self.select(kinds, outer, depth)
    }

    fn select(&mut self, kinds: &[Kind], outer: &[Column], depth: u32) -> String {
        let (from, scope) = self.from(outer, depth);
        self.select_of(kinds, &from, &scope, outer, depth)
    }

    fn select_from(
        &mut self,
        kinds: &[Kind],
        name: String,
        columns: Vec<Column>,
        outer: &[Column],
        depth: u32,
    ) -> String {
        let (mut from, mut scope) = (name, columns);
        if self.chance(60) {
            let (right, columns) = self.relation(outer, depth);
            from = self.join(&from, &scope, &right, &columns);
            scope.extend(columns);
        }
        self.select_of(kinds, &from, &scope, outer, depth)
    }

    fn select_of(
        &mut self,
        kinds: &[Kind],
        from: &str,
        scope: &[Column],
        outer: &[Column],
        depth: u32,
    ) -> String {
        let visible = [scope, outer].concat();
        let filter = if self.chance(60) {
            format!(" where {}", self.condition(&visible, depth))
        } else {
            String::new()
        };
        if self.chance(30) {
            return self.grouped(kinds, &format!("{from}{filter}"), scope, depth);
        }
        let mut values: Vec<String> =
            kinds.iter().map(|kind| self.expression(&visible, *kind, 2, depth)).collect();
        let mut distinct = String::new();
        if self.chance(15) {
            distinct = "distinct ".to_owned();
        } else if self.chance(25) {
            let window = self.window(scope);
            if let Some(at) = kinds.iter().position(|kind| *kind == window.0) {
                values[at] = window.1;
            }
        }
        format!("select {distinct}{} from {from}{filter}", values.join(", "))
    }

    /// Returns a SELECT whose columns are grouping keys and aggregates.
    fn grouped(&mut self, kinds: &[Kind], from: &str, scope: &[Column], depth: u32) -> String {
        let mut keys: Vec<String> = Vec::new();
        let mut values = Vec::new();
        for kind in kinds {
            let columns: Vec<&Column> = scope.iter().filter(|it| it.kind == *kind).collect();
            if !columns.is_empty() && self.chance(50) {
                let key = self.pick(&columns).name.clone();
                if !keys.contains(&key) {
                    keys.push(key.clone());
                }
                values.push(key);
            } else {
                values.push(self.aggregate(scope, *kind));
            }
        }
        let mut sql = format!("select {} from {from}", values.join(", "));
        if !keys.is_empty() {
            let keys = keys.join(", ");
            let by = match self.rng.u32(..10) {
                0 => format!("rollup ({keys})"),
                1 => format!("cube ({keys})"),
                2 => format!("grouping sets (({keys}), ())"),
                _ => keys,
            };
            sql.push_str(&format!(" group by {by}"));
        }
        if self.chance(25) {
            let aggregate = self.aggregate(scope, Kind::Big);
            sql.push_str(&format!(" having {aggregate} > {}", self.rng.u32(..4)));
        } else if depth > 0 && self.chance(10) {
            sql.push_str(" having count(*) > 1");
        }
        sql
    }

    /// Returns an aggregate of a kind, sometimes with a filter.
    fn aggregate(&mut self, scope: &[Column], kind: Kind) -> String {
        let plain: Vec<_> = AGGREGATES.iter().filter(|row| row.0 == kind).collect();
        let ordered: Vec<_> = ORDERED_AGGREGATES.iter().filter(|row| row.0 == kind).collect();
        let all = [plain, ordered].concat();
        if all.is_empty() {
            // No aggregate returns this kind.
            return self.literal(kind);
        }
        let (_, text, argument) = self.pick(&all);
        let argument = self.expression(scope, *argument, 1, 0);
        let mut sql = text.replace("{}", &argument);
        if self.chance(20) {
            sql.push_str(&format!(" filter (where {})", self.condition(scope, 0)));
        }
        sql
    }

    /// Returns a window function whose values do not depend on the order of rows that tie.
    fn window(&mut self, scope: &[Column]) -> (Kind, String) {
        let by = self.pick(scope).name.clone();
        let unique: Vec<String> =
            scope.iter().filter(|it| it.is_unique).map(|it| it.name.clone()).collect();
        let partition = match self.rng.u32(..2) {
            0 => format!("partition by {} ", self.pick(scope).name),
            _ => String::new(),
        };
        let argument = self.expression(scope, Kind::Int, 1, 0);
        if unique.is_empty() || self.chance(50) {
            let functions = [
                (Kind::Big, "rank()".to_owned()),
                (Kind::Big, "dense_rank()".to_owned()),
                (Kind::Big, "count(*)".to_owned()),
                (Kind::Big, format!("sum({argument})")),
                (Kind::Int, format!("max({argument})")),
                (Kind::Float, "cume_dist()".to_owned()),
            ];
            let (kind, function) = self.pick(&functions).clone();
            return (kind, format!("{function} over ({partition}order by {by})"));
        }
        let functions = [
            (Kind::Big, "row_number()".to_owned(), ""),
            (Kind::Int, "ntile(3)".to_owned(), ""),
            (Kind::Int, format!("lag({argument})"), ""),
            (Kind::Int, format!("lead({argument}, 2, 0)"), ""),
            (Kind::Int, format!("first_value({argument})"), ""),
            (Kind::Big, format!("sum({argument})"), " rows between 1 preceding and 1 following"),
            (Kind::Int, format!("max({argument})"), " rows 2 preceding"),
        ];
        let (kind, function, frame) = self.pick(&functions).clone();
        (kind, format!("{function} over ({partition}order by {}{frame})", unique.join(", ")))
    }

    /// Returns joined relations and their columns.
    fn from(&mut self, outer: &[Column], depth: u32) -> (String, Vec<Column>) {
        let (mut from, mut scope) = self.relation(outer, depth);
        while scope.len() < 12 && self.chance(40) {
            let (right, columns) = if depth > 0 && self.chance(10) && self.may_nest(depth) {
                let kinds = self.kinds();
                let name = self.name();
                let visible = [&scope, outer].concat();
                let query = self.select(&kinds, &visible, 0);
                let columns = output_columns(&kinds, &name);
                (format!("lateral ({query}) {}", alias(&name, &columns)), columns)
            } else {
                self.relation(outer, depth)
            };
            from = if right.starts_with("lateral") {
                let join = *self.pick(&["join", "left join"]);
                format!("{from} {join} {right} on true")
            } else {
                self.join(&from, &scope, &right, &columns)
            };
            scope.extend(columns);
            // The join may repeat a row or omit it.
            scope.iter_mut().for_each(|column| column.is_unique = false);
        }
        (from, scope)
    }

    fn join(&mut self, left: &str, scope: &[Column], right: &str, columns: &[Column]) -> String {
        let join = *self.pick(&["join", "join", "left join", "right join", "full join"]);
        let pairs: Vec<(&Column, &Column)> = scope
            .iter()
            .flat_map(|a| columns.iter().map(move |b| (a, b)))
            .filter(|(a, b)| a.kind == b.kind)
            .collect();
        if pairs.is_empty() || self.chance(8) {
            return format!("{left} cross join {right}");
        }
        let (a, b) = *self.pick(&pairs);
        let mut on = format!("{} = {}", a.name, b.name);
        // PostgreSQL supports only equalities in full joins.
        if join != "full join" && self.chance(35) {
            let both = [scope, columns].concat();
            on.push_str(&format!(" and {}", self.condition(&both, 0)));
        }
        format!("{left} {join} {right} on {on}")
    }

    /// Returns a table or a subquery.
    fn relation(&mut self, outer: &[Column], depth: u32) -> (String, Vec<Column>) {
        let name = self.name();
        if depth > 0 && self.chance(20) && self.may_nest(depth) {
            let kinds = self.kinds();
            // Without LATERAL it sees only the columns outside of the enclosing query.
            let query = self.query(&kinds, outer, depth - 1);
            let columns = output_columns(&kinds, &name);
            return (format!("({query}) {}", alias(&name, &columns)), columns);
        }
        let table = self.pick(TABLES);
        let column = |(at, (column, kind)): (usize, &(&str, Kind))| Column {
            name: format!("{name}.{column}"),
            kind: *kind,
            is_unique: at == 0,
        };
        let columns = table.columns.iter().enumerate().map(column).collect();
        (format!("{} {name}", table.name), columns)
    }

    pub(super) fn literal(&mut self, kind: Kind) -> String {
        if self.chance(10) {
            return format!("null::{}", kind.name());
        }
        (*self.pick(kind.literals())).to_owned()
    }

    /// Returns an expression of a kind over the columns in scope.
    pub(super) fn expression(
        &mut self,
        scope: &[Column],
        kind: Kind,
        size: u32,
        depth: u32,
    ) -> String {
        let columns: Vec<&Column> = scope.iter().filter(|it| it.kind == kind).collect();
        if !columns.is_empty() && (size == 0 || self.chance(45)) {
            return self.pick(&columns).name.clone();
        }
        if size == 0 || self.chance(15) {
            return self.literal(kind);
        }
        if kind == Kind::Bool && self.chance(60) {
            return self.comparison(scope, size, depth);
        }
        match self.rng.u32(..20) {
            0 => {
                let [a, b] = [0, 1].map(|_| self.expression(scope, kind, size - 1, depth));
                format!("coalesce({a}, {b})")
            }
            1 => {
                let condition = self.expression(scope, Kind::Bool, size - 1, depth);
                let [a, b] = [0, 1].map(|_| self.expression(scope, kind, size - 1, depth));
                format!("case when {condition} then {a} else {b} end")
            }
            2 => {
                let [a, b] = [0, 1].map(|_| self.expression(scope, kind, size - 1, depth));
                format!("nullif({a}, {b})")
            }
            3 if self.may_nest(depth) => self.scalar(scope, kind, depth - 1),
            _ => {
                let parts: Vec<_> = PARTS.iter().filter(|part| part.0 == kind).collect();
                let (_, text, kinds) = **self.pick(&parts);
                let mut sql = text.to_owned();
                for kind in kinds {
                    let part = self.expression(scope, *kind, size - 1, depth);
                    sql = sql.replacen("{}", &part, 1);
                }
                sql
            }
        }
    }

    /// Returns a scalar subquery.
    fn scalar(&mut self, scope: &[Column], kind: Kind, depth: u32) -> String {
        let (from, columns) = self.from(scope, depth);
        let visible = [&columns, scope].concat();
        let filter = self.condition(&visible, 0);
        let aggregate = self.aggregate(&columns, kind);
        if aggregate.contains('(') && AGGREGATES.iter().any(|row| row.0 == kind) {
            return format!("(select {aggregate} from {from} where {filter})");
        }
        let value = self.expression(&visible, kind, 1, 0);
        format!("(select {value} from {from} where {filter} order by 1 limit 1)")
    }

    pub(super) fn condition(&mut self, scope: &[Column], depth: u32) -> String {
        self.expression(scope, Kind::Bool, 2, depth)
    }

    /// Returns a comparison of two values, or of a value with the result of a query.
    fn comparison(&mut self, scope: &[Column], size: u32, depth: u32) -> String {
        let kind = self.kind();
        let value = self.expression(scope, kind, size - 1, depth);
        if self.chance(35) && self.may_nest(depth) {
            let not = *self.pick(&["", "not "]);
            return match self.rng.u32(..4) {
                0 => format!("({not}exists ({}))", self.query(&[kind], scope, depth - 1)),
                1 => {
                    let operator = *self.pick(&["= any", "< any", "> all", "<> all"]);
                    format!("({value} {operator} ({}))", self.query(&[kind], scope, depth - 1))
                }
                _ => format!("({value} {not}in ({}))", self.query(&[kind], scope, depth - 1)),
            };
        }
        match self.rng.u32(..10) {
            0 => format!("({value} is null)"),
            1 => format!("({value} is not null)"),
            2 => {
                let other = self.expression(scope, kind, size - 1, depth);
                let not = *self.pick(&["", "not "]);
                format!("({value} is {not}distinct from {other})")
            }
            _ => {
                let other = self.expression(scope, kind, size - 1, depth);
                let operator = *self.pick(&["=", "=", "<>", "<", "<=", ">", ">="]);
                format!("({value} {operator} {other})")
            }
        }
    }
}

/// Returns the columns of a query with an alias.
fn output_columns(kinds: &[Kind], name: &str) -> Vec<Column> {
    let column = |(at, kind): (usize, &Kind)| Column {
        name: format!("{name}.c{at}"),
        kind: *kind,
        is_unique: false,
    };
    kinds.iter().enumerate().map(column).collect()
}

fn short(name: &str) -> &str {
    name.split_once('.').map_or(name, |(_, column)| column)
}

fn alias(name: &str, columns: &[Column]) -> String {
    let columns: Vec<&str> = columns.iter().map(|column| short(&column.name)).collect();
    format!("{name} ({})", columns.join(", "))
}
