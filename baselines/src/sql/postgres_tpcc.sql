-- TPC-C in PostgreSQL. Money in cents, taxes and discounts in ten-thousandths, dates in seconds.
-- Rows that are written again and again have room beside them, so that no index is written for it.

CREATE TABLE item (
    i_id integer PRIMARY KEY, i_im_id integer NOT NULL, i_name varchar(24) NOT NULL,
    i_price integer NOT NULL, i_data varchar(50) NOT NULL);

CREATE TABLE warehouse (
    w_id integer PRIMARY KEY, w_name varchar(10) NOT NULL, w_street_1 varchar(20) NOT NULL,
    w_street_2 varchar(20) NOT NULL, w_city varchar(20) NOT NULL, w_state char(2) NOT NULL,
    w_zip char(9) NOT NULL, w_tax integer NOT NULL, w_ytd bigint NOT NULL) WITH (fillfactor = 10);

CREATE TABLE district (
    d_w_id integer, d_id smallint, d_name varchar(10) NOT NULL, d_street_1 varchar(20) NOT NULL,
    d_street_2 varchar(20) NOT NULL, d_city varchar(20) NOT NULL, d_state char(2) NOT NULL,
    d_zip char(9) NOT NULL, d_tax integer NOT NULL, d_ytd bigint NOT NULL,
    d_next_o_id integer NOT NULL, PRIMARY KEY (d_w_id, d_id)) WITH (fillfactor = 10);

CREATE TABLE stock (
    s_w_id integer, s_i_id integer, s_quantity integer NOT NULL,
    s_dist_01 char(24) NOT NULL, s_dist_02 char(24) NOT NULL, s_dist_03 char(24) NOT NULL,
    s_dist_04 char(24) NOT NULL, s_dist_05 char(24) NOT NULL, s_dist_06 char(24) NOT NULL,
    s_dist_07 char(24) NOT NULL, s_dist_08 char(24) NOT NULL, s_dist_09 char(24) NOT NULL,
    s_dist_10 char(24) NOT NULL, s_ytd integer NOT NULL, s_order_cnt integer NOT NULL,
    s_remote_cnt integer NOT NULL, s_data varchar(50) NOT NULL, PRIMARY KEY (s_w_id, s_i_id))
    WITH (fillfactor = 80);

CREATE TABLE customer (
    c_w_id integer, c_d_id smallint, c_id integer, c_first varchar(16) NOT NULL,
    c_middle char(2) NOT NULL, c_last varchar(16) NOT NULL, c_street_1 varchar(20) NOT NULL,
    c_street_2 varchar(20) NOT NULL, c_city varchar(20) NOT NULL, c_state char(2) NOT NULL,
    c_zip char(9) NOT NULL, c_phone char(16) NOT NULL, c_since bigint NOT NULL,
    c_credit char(2) NOT NULL, c_credit_lim bigint NOT NULL, c_discount integer NOT NULL,
    c_balance bigint NOT NULL, c_ytd_payment bigint NOT NULL, c_payment_cnt integer NOT NULL,
    c_delivery_cnt integer NOT NULL, c_data varchar(500) NOT NULL,
    PRIMARY KEY (c_w_id, c_d_id, c_id)) WITH (fillfactor = 80);
CREATE INDEX customer_by_name ON customer (c_w_id, c_d_id, c_last, c_first, c_id);

CREATE TABLE history (
    h_c_w_id integer, h_c_d_id smallint, h_c_id integer, h_number integer,
    h_w_id integer NOT NULL, h_d_id smallint NOT NULL, h_date bigint NOT NULL,
    h_amount bigint NOT NULL, h_data varchar(24) NOT NULL,
    PRIMARY KEY (h_c_w_id, h_c_d_id, h_c_id, h_number));

CREATE TABLE orders (
    o_w_id integer, o_d_id smallint, o_id integer, o_c_id integer NOT NULL,
    o_entry_d bigint NOT NULL, o_carrier_id smallint, o_ol_cnt smallint NOT NULL,
    o_all_local smallint NOT NULL, PRIMARY KEY (o_w_id, o_d_id, o_id));
CREATE INDEX orders_by_customer ON orders (o_w_id, o_d_id, o_c_id, o_id);

CREATE TABLE new_order (
    no_w_id integer, no_d_id smallint, no_o_id integer, PRIMARY KEY (no_w_id, no_d_id, no_o_id));

CREATE TABLE order_line (
    ol_w_id integer, ol_d_id smallint, ol_o_id integer, ol_number smallint,
    ol_i_id integer NOT NULL, ol_supply_w_id integer NOT NULL, ol_delivery_d bigint,
    ol_quantity smallint NOT NULL, ol_amount bigint NOT NULL, ol_dist_info char(24) NOT NULL,
    PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number));

CREATE FUNCTION tpcc_new_order(
    w integer, d smallint, c integer, entered bigint, all_local smallint,
    numbers smallint[], items integer[], supplies integer[], quantities smallint[],
    OUT number integer, OUT total bigint, OUT tax_w integer, OUT tax_d integer,
    OUT discount integer, OUT last text, OUT credit text, OUT amounts bigint[],
    OUT prices integer[], OUT names text[], OUT left_over integer[], OUT brands text[])
LANGUAGE plpgsql AS $$
DECLARE
    price integer; name text; item_data text; stock_data text; info text; stocked integer;
    amount bigint; line_sum bigint := 0;
BEGIN
    SELECT w_tax INTO tax_w FROM warehouse WHERE w_id = w;
    SELECT c_discount, c_last, c_credit INTO discount, last, credit FROM customer
        WHERE c_w_id = w AND c_d_id = d AND c_id = c;
    UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = w AND d_id = d
        RETURNING d_next_o_id - 1, d_tax INTO number, tax_d;
    INSERT INTO orders VALUES (w, d, number, c, entered, NULL, cardinality(items), all_local);
    INSERT INTO new_order VALUES (w, d, number);
    FOR i IN 1 .. cardinality(items) LOOP
        SELECT i_price, i_name, i_data INTO price, name, item_data FROM item
            WHERE i_id = items[i];
        IF NOT FOUND THEN
            RAISE EXCEPTION 'Item number is not valid' USING ERRCODE = 'P0001';
        END IF;
        UPDATE stock SET
            s_quantity = s_quantity - quantities[i]
                + CASE WHEN s_quantity - quantities[i] < 10 THEN 91 ELSE 0 END,
            s_ytd = s_ytd + quantities[i],
            s_order_cnt = s_order_cnt + 1,
            s_remote_cnt = s_remote_cnt + CASE WHEN supplies[i] = w THEN 0 ELSE 1 END
            WHERE s_w_id = supplies[i] AND s_i_id = items[i]
            RETURNING s_quantity, s_data, CASE d
                WHEN 1 THEN s_dist_01 WHEN 2 THEN s_dist_02 WHEN 3 THEN s_dist_03
                WHEN 4 THEN s_dist_04 WHEN 5 THEN s_dist_05 WHEN 6 THEN s_dist_06
                WHEN 7 THEN s_dist_07 WHEN 8 THEN s_dist_08 WHEN 9 THEN s_dist_09
                ELSE s_dist_10 END
            INTO stocked, stock_data, info;
        amount := quantities[i]::bigint * price;
        line_sum := line_sum + amount;
        INSERT INTO order_line VALUES (w, d, number, numbers[i], items[i], supplies[i], NULL,
            quantities[i], amount, info);
        amounts[i] := amount;
        prices[i] := price;
        names[i] := name;
        left_over[i] := stocked;
        brands[i] := CASE WHEN position('ORIGINAL' IN item_data) > 0
            AND position('ORIGINAL' IN stock_data) > 0 THEN 'B' ELSE 'G' END;
    END LOOP;
    -- Half a cent is rounded up.
    total := (line_sum * (10000 - discount) * (10000 + tax_w + tax_d) + 50000000) / 100000000;
END $$;

CREATE FUNCTION tpcc_payment(
    w integer, d smallint, cw integer, cd smallint, c integer, named text, amount bigint,
    paid_at bigint, OUT site_w warehouse, OUT site_d district, OUT payer customer)
LANGUAGE plpgsql AS $$
DECLARE
    namesakes integer;
BEGIN
    UPDATE warehouse SET w_ytd = w_ytd + amount WHERE w_id = w RETURNING * INTO site_w;
    UPDATE district SET d_ytd = d_ytd + amount WHERE d_w_id = w AND d_id = d
        RETURNING * INTO site_d;
    IF c IS NULL THEN
        -- The one in the middle, of an even number the one before the middle.
        SELECT count(*) INTO namesakes FROM customer
            WHERE c_w_id = cw AND c_d_id = cd AND c_last = named;
        SELECT c_id INTO c FROM customer WHERE c_w_id = cw AND c_d_id = cd AND c_last = named
            ORDER BY c_first, c_id OFFSET greatest((namesakes - 1) / 2, 0) LIMIT 1;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'nobody has this name' USING ERRCODE = 'P0002';
        END IF;
    END IF;
    UPDATE customer SET c_balance = c_balance - amount, c_ytd_payment = c_ytd_payment + amount,
        c_payment_cnt = c_payment_cnt + 1,
        c_data = CASE c_credit WHEN 'BC' THEN
            left(concat_ws(' ', c, cd, cw, d, w, amount / 100)
                || '.' || lpad((amount % 100)::text, 2, '0') || ' ' || c_data, 500)
            ELSE c_data END
        WHERE c_w_id = cw AND c_d_id = cd AND c_id = c RETURNING * INTO payer;
    INSERT INTO history VALUES (cw, cd, c, payer.c_payment_cnt, w, d, paid_at, amount,
        site_w.w_name || '    ' || site_d.d_name);
END $$;
