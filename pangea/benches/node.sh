# Parts of the scripts beside it: one node of Pangea on loopback, and medians. To be sourced.

# Prints a port of loopback that nobody listens on now.
free_port() {
    local port
    while port=$((20000 + RANDOM % 12000)); (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    echo "$port"
}

# node_config SQL_PORT: prints the configuration of a node alone, with its files beside it.
node_config() {
    cat <<TOML
cluster = "bench"
protocol = "minerva"
node = 0
data_dir = "data"
durability = "os"
regions = ["here"]

[[nodes]]
id = 0
region = "here"
peer = "127.0.0.1:$(free_port)"
sql = "127.0.0.1:$1"
TOML
}

# Prints the median of the numbers on stdin, one in a line.
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
