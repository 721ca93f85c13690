#!/usr/bin/env bash
# One node of Pangea beside PostgreSQL 15 on the same statements, in turn. See -h.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. pangea/benches/node.sh

usage() {
    cat <<'TEXT'
Usage: pangea/benches/postgres.sh [--secs S] [--repeats N] [--clients C] [--rows R] [-h]

Starts PostgreSQL 15 (Debian's package, fsync off) and one node of Pangea (target/release/pangea,
durability = "os") on loopback, and gives both the same work in turn:

  point SELECT, point UPDATE   pgbench, prepared, scale 1: processor time of the server for each
                               statement, and statements a second
  joins and aggregates         psql over a table of R rows and one of R / 10: seconds of each query,
                               of which the rows must be the same on both
  both at once                 point UPDATEs a second while a client groups the large table, again
                               and again, and how often it does

Prints the median of N repeats for each server, and the ratio. It takes some five minutes.

  --secs S      how long each run of pgbench takes (default 8)
  --repeats N   how often everything is measured (default 3)
  --clients C   clients of pgbench (default 16)
  --rows R      rows of the larger table (default 1000000)

First: cargo build --release, or PANGEA=path of another binary
TEXT
}

secs=8
repeats=3
clients=16
rows=1000000
while [ $# -gt 0 ]; do
    case $1 in
    --secs | --repeats | --clients | --rows)
        [[ ${2:-} =~ ^[1-9][0-9]{0,7}$ ]] || { echo "$1 takes a number" >&2; exit 2; }
        declare "${1#--}=$2"
        shift
        ;;
    -h | --help) usage; exit 0 ;;
    *) echo "there is no option $1; -h lists them" >&2; exit 2 ;;
    esac
    shift
done

programs=/usr/lib/postgresql/15/bin
binary=${PANGEA:-$PWD/target/release/pangea}
for needed in "$programs/postgres" "$programs/pgbench" "$programs/psql" "$binary"; do
    [ -x "$needed" ] || { echo "$needed is missing: see -h" >&2; exit 2; }
done

scratch=$(mktemp -d)
chmod 755 "$scratch"
postgres_pid='' pangea_pid=''
clean_up() {
    [ -z "$pangea_pid" ] || kill "$pangea_pid" 2>/dev/null || true
    [ -z "$postgres_pid" ] || kill -INT "$postgres_pid" 2>/dev/null || true
    wait
    rm -rf "$scratch"
}
trap clean_up EXIT

# PostgreSQL refuses to run as root.
as_owner=()
[ "$(id -u)" != 0 ] || as_owner=(setpriv --reuid=postgres --regid=postgres --clear-groups)

# --- The servers --------------------------------------------------------------------------------

postgres_port=$(free_port)
sql_port=$(free_port)
mkdir "$scratch/postgres"
[ "$(id -u)" != 0 ] || chown postgres "$scratch/postgres"
cd "$scratch/postgres"
"${as_owner[@]}" "$programs/initdb" -D data -U pangea --auth=trust --locale=C --encoding=UTF8 \
    >/dev/null
"${as_owner[@]}" "$programs/postgres" -D data -p "$postgres_port" \
    -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off >log 2>&1 &
postgres_pid=$!
cd - >/dev/null

node_config "$sql_port" >"$scratch/node.toml"
"$binary" start --config "$scratch/node.toml" >"$scratch/out" 2>"$scratch/log" &
pangea_pid=$!

port_of() { if [ "$1" = postgres ]; then echo "$postgres_port"; else echo "$sql_port"; fi; }

client() {
    local server=$1 program=$2
    shift 2
    PGHOST=127.0.0.1 PGPORT=$(port_of "$server") PGUSER=pangea PGDATABASE=postgres \
        PGOPTIONS='' "$programs/$program" "$@"
}

for server in postgres pangea; do
    for _ in $(seq 300); do
        client "$server" psql -qAtc 'select 1' >/dev/null 2>&1 && break
        sleep 0.1
    done
    client "$server" psql -qAtc 'select 1' >/dev/null
done

# Processor time of a process in ticks, with that of its children, also of those that have ended.
ticks() {
    local pid used total=0
    local server=$1 root
    if [ "$server" = postgres ]; then root=$postgres_pid; else root=$pangea_pid; fi
    for pid in $root $(pgrep -P "$root" || true); do
        # One that has ended meanwhile says nothing.
        used=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null |
            awk -v root=$((pid == root)) '{ print $12 + $13 + root * ($14 + $15) }')
        total=$((total + ${used:-0}))
    done
    echo "$total"
}

# --- Statements ---------------------------------------------------------------------------------

cat >"$scratch/select.sql" <<'SQL'
\set aid random(1, 100000)
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
SQL
cat >"$scratch/update.sql" <<'SQL'
\set aid random(1, 100000)
\set delta random(-5000, 5000)
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SQL

per_second=$(getconf CLK_TCK)

# "CPU microseconds for each statement, statements a second" of a run of pgbench.
statements() {
    local server=$1 script=$2 before after out done_ rate
    before=$(ticks "$server")
    out=$(client "$server" pgbench -n -M prepared -c "$clients" -j 1 -T "$secs" -f "$script" 2>&1)
    # Its backends are reaped.
    sleep 0.3
    after=$(ticks "$server")
    done_=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' <<<"$out")
    rate=$(sed -n 's/^tps = \([0-9]*\).*/\1/p' <<<"$out")
    failed=$(sed -n 's/^number of failed transactions: \([0-9]*\).*/\1/p' <<<"$out")
    [ "${failed:-0}" = 0 ] && [ "${done_:-0}" -gt 0 ] || { echo "$server: $out" >&2; return 1; }
    awk -v t=$((after - before)) -v hz="$per_second" -v n="$done_" -v r="$rate" \
        'BEGIN { printf "%.2f %d\n", t * 1e6 / hz / n, r }'
}

for server in postgres pangea; do
    client "$server" pgbench -i -s 1 -q -n >/dev/null 2>&1
done

printf '\n%-16s %14s %14s %7s %14s %14s\n' "$clients clients" 'PostgreSQL us' 'Pangea us' ratio \
    'PostgreSQL /s' 'Pangea /s'
for kind in select update; do
    for server in postgres pangea; do : >"$scratch/$kind.$server"; done
    # Once beforehand, which is not counted.
    for server in postgres pangea; do statements "$server" "$scratch/$kind.sql" >/dev/null; done
    for _ in $(seq "$repeats"); do
        for server in postgres pangea; do
            statements "$server" "$scratch/$kind.sql" >>"$scratch/$kind.$server"
        done
    done
    a=$(cut -d' ' -f1 "$scratch/$kind.postgres" | median)
    b=$(cut -d' ' -f1 "$scratch/$kind.pangea" | median)
    awk -v k="point ${kind^^}" -v a="$a" -v b="$b" \
        -v c="$(cut -d' ' -f2 "$scratch/$kind.postgres" | median)" \
        -v d="$(cut -d' ' -f2 "$scratch/$kind.pangea" | median)" \
        'BEGIN { printf "%-16s %14.1f %14.1f %7.2f %14d %14d\n", k, a, b, b / a, c, d }'
done

# --- Joins and aggregates -----------------------------------------------------------------------

small=$((rows / 10))
awk -v n="$rows" -v m="$small" 'BEGIN { srand(7); for (i = 1; i <= n; i++)
    printf "%d\t%d\t%d\t%d.%02d\t2024-%02d-%02d\t%s\n", i, int(rand() * m) + 1, int(rand() * 1000),
        int(rand() * 5000), int(rand() * 100), i % 12 + 1, i % 28 + 1, "note " i % 1000 }' \
    >"$scratch/orders"
awk -v m="$small" 'BEGIN { for (i = 1; i <= m; i++)
    printf "%d\tname %d\t%d\n", i, i, i % 50 }' >"$scratch/customers"
for server in postgres pangea; do
    client "$server" psql -q -v ON_ERROR_STOP=1 <<SQL
create table orders (id int primary key, customer int not null, quantity int not null,
    price numeric(10, 2) not null, day date not null, note text not null);
create table customers (id int primary key, name text not null, region int not null);
\\copy orders from '$scratch/orders'
\\copy customers from '$scratch/customers'
analyze orders;
analyze customers;
SQL
done

queries=(
    'select count(*) from orders'
    'select count(*), sum(quantity), min(day), max(day) from orders where quantity < 500'
    'select sum(price), avg(price) from orders'
    'select quantity, count(*), sum(price) from orders group by quantity order by quantity'
    'select note, count(*), max(price) from orders group by note order by note limit 20'
    'select c.region, count(*), sum(o.quantity) from orders o join customers c on c.id = o.customer group by c.region order by c.region'
    'select c.name, sum(o.price) as total from orders o join customers c on c.id = o.customer where c.region = 7 group by c.name order by total desc, c.name limit 10'
    'select count(*) from customers c left join orders o on o.customer = c.id and o.quantity < 100 where o.id is null'
    'select count(*) from orders a join orders b on b.id = a.id + 1 where a.quantity = b.quantity'
    'select count(*) from (select distinct customer, quantity from orders) x'
    'select id, price from orders order by price desc, id limit 10'
    'select day, sum(quantity), rank() over (order by sum(quantity) desc, day) from orders group by day order by 3 limit 10'
)
printf '\n%-44s %13s %13s %7s\n' "$rows rows" 'PostgreSQL s' 'Pangea s' ratio
for query in "${queries[@]}"; do
    for server in postgres pangea; do
        client "$server" psql -qAtc "$query" >"$scratch/rows.$server"
    done
    cmp -s "$scratch/rows.postgres" "$scratch/rows.pangea" ||
        { echo "the rows differ: $query" >&2; diff "$scratch/rows.postgres" "$scratch/rows.pangea" | head -5 >&2; exit 1; }
    for server in postgres pangea; do
        for _ in $(seq "$repeats"); do
            client "$server" psql -qAt -c '\timing on' -c "$query" |
                sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p'
        done | median >"$scratch/ms.$server"
    done
    awk -v k="${query:0:44}" -v a="$(cat "$scratch/ms.postgres")" -v b="$(cat "$scratch/ms.pangea")" \
        'BEGIN { printf "%-44s %13.3f %13.3f %7.2f\n", k, a / 1e3, b / 1e3, b / a }'
done

# --- Both at once -------------------------------------------------------------------------------

scan='select quantity, count(*), sum(price) from orders group by quantity order by quantity'
printf '\n%-28s %14s %14s %7s\n' "$clients clients, 1 scans" 'PostgreSQL /s' 'Pangea /s' ratio
for server in postgres pangea; do
    for _ in $(seq "$repeats"); do
        rm -f "$scratch/stop"
        (
            count=0
            until [ -e "$scratch/stop" ]; do
                client "$server" psql -qAtc "$scan" >/dev/null
                count=$((count + 1))
            done
            echo "$count" >"$scratch/count"
        ) &
        scans=$!
        rate=$(statements "$server" "$scratch/update.sql" | cut -d' ' -f2)
        touch "$scratch/stop"
        wait "$scans"
        awk -v r="$rate" -v c="$(cat "$scratch/count")" -v s="$secs" 'BEGIN { print r, c / s }' \
            >>"$scratch/both.$server"
    done
done
both() { cut -d' ' -f"$2" "$scratch/both.$1" | median; }
for field in 1 2; do
    if [ "$field" = 1 ]; then what='point UPDATE'; else what='GROUP BY of all rows'; fi
    awk -v k="$what" -v a="$(both postgres "$field")" -v b="$(both pangea "$field")" \
        'BEGIN { printf "%-28s %14.1f %14.1f %7.2f\n", k, a, b, b / a }'
done
