-- A small shop with warehouses in every region.
--
-- An order is one CALL and reduces the stock. Customers read their orders, prices change now and
-- then, and a report finds the bestsellers. At the end, these checks must hold: no stock is
-- negative, stock and ordered pieces of each item add up to the initial stock, and every order
-- that a client saw commit exists exactly once.
--
--   pangea bench --workload workloads/shop.sql --rtt 100 --clients 120
--   pangea bench --workload workloads/shop.sql --define items=100,skew=1.2
--   pangea bench --workload workloads/shop.sql --baseline postgres

-- schema
\set items 2000
\set customers 5000
\set stock 1000000
\set skew 0.8

CREATE TABLE item (
    id int PRIMARY KEY,
    name text NOT NULL,
    price numeric(10, 2) NOT NULL,
    stock int NOT NULL CHECK (stock >= 0)
);
CREATE TABLE customer (
    id int PRIMARY KEY,
    name text NOT NULL,
    region text NOT NULL,
    since timestamptz NOT NULL
);
CREATE TABLE orders (
    id text PRIMARY KEY,
    customer int NOT NULL,
    item int NOT NULL,
    quantity int NOT NULL,
    paid numeric(12, 2) NOT NULL,
    region text NOT NULL,
    placed timestamptz NOT NULL
);
CREATE INDEX orders_of_customer ON orders (customer);

CREATE PROCEDURE place_order(
    order_id text, buyer int, wanted int, pieces int, from_region text, ordered timestamptz
) LANGUAGE plpgsql AS $$
DECLARE
    unit_price numeric;
BEGIN
    UPDATE item SET stock = stock - pieces WHERE id = wanted RETURNING price INTO unit_price;
    INSERT INTO orders
        VALUES (order_id, buyer, wanted, pieces, unit_price * pieces, from_region, ordered);
END
$$;

-- rows item :items
\set price random(100, 10000) / 100.0
INSERT INTO item (id, name, price, stock) VALUES (:row, 'item ' || :row::text, :price, :stock);

-- rows customer :customers
\set name random_string(4, 12)
\set home choice('north', 'south', 'east', 'west')
\set since random_timestamp('2020-01-01', '2026-01-01')
INSERT INTO customer VALUES (:row, :name, :home, :since);

-- transaction order weight 8
\set id :client_id || '-' || sequence()
\set customer random(1, :customers)
\set item random_zipfian(1, :items, :skew)
\set pieces random(1, 3)
\set placed now()
CALL place_order(:id, :customer, :item, :pieces, :region, :placed);

-- transaction history weight 4
\set customer random(1, :customers)
SELECT id, item, quantity, paid FROM orders WHERE customer = :customer ORDER BY placed DESC LIMIT 10;

-- Reads a price and then changes it. If another client changed it in between, the transaction is
-- retried.
-- transaction reprice weight 1
\set item random_zipfian(1, :items, :skew)
BEGIN;
SELECT price FROM item WHERE id = :item \gset
\set new least(double(:price) * 1.05, 200)
UPDATE item SET price = round(:new::numeric, 2) WHERE id = :item;
COMMIT;

-- transaction bestsellers weight 1
SELECT item, sum(quantity) AS sold FROM orders GROUP BY item ORDER BY sold DESC, item LIMIT 5;

-- check stock_and_orders
SELECT i.id, i.stock, coalesce(o.sold, 0) AS sold
FROM item AS i LEFT JOIN (SELECT item, sum(quantity) AS sold FROM orders GROUP BY item) AS o
    ON o.item = i.id
WHERE i.stock + coalesce(o.sold, 0) <> :stock;

-- check every_order_once
SELECT count(*) BETWEEN :committed_order AND :committed_order + :unknown_order FROM orders;
