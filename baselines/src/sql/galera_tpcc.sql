CREATE TABLE item (
    i_id int PRIMARY KEY, i_im_id int NOT NULL, i_name varchar(24) NOT NULL,
    i_price int NOT NULL, i_data varchar(50) NOT NULL)
;;
CREATE TABLE warehouse (
    w_id int PRIMARY KEY, w_name varchar(10) NOT NULL, w_street_1 varchar(20) NOT NULL,
    w_street_2 varchar(20) NOT NULL, w_city varchar(20) NOT NULL, w_state char(2) NOT NULL,
    w_zip char(9) NOT NULL, w_tax int NOT NULL, w_ytd bigint NOT NULL)
;;
CREATE TABLE district (
    d_w_id int, d_id smallint, d_name varchar(10) NOT NULL, d_street_1 varchar(20) NOT NULL,
    d_street_2 varchar(20) NOT NULL, d_city varchar(20) NOT NULL, d_state char(2) NOT NULL,
    d_zip char(9) NOT NULL, d_tax int NOT NULL, d_ytd bigint NOT NULL,
    d_next_o_id int NOT NULL, PRIMARY KEY (d_w_id, d_id))
;;
CREATE TABLE stock (
    s_w_id int, s_i_id int, s_quantity int NOT NULL,
    s_dist_01 char(24) NOT NULL, s_dist_02 char(24) NOT NULL, s_dist_03 char(24) NOT NULL,
    s_dist_04 char(24) NOT NULL, s_dist_05 char(24) NOT NULL, s_dist_06 char(24) NOT NULL,
    s_dist_07 char(24) NOT NULL, s_dist_08 char(24) NOT NULL, s_dist_09 char(24) NOT NULL,
    s_dist_10 char(24) NOT NULL, s_ytd int NOT NULL, s_order_cnt int NOT NULL,
    s_remote_cnt int NOT NULL, s_data varchar(50) NOT NULL, PRIMARY KEY (s_w_id, s_i_id))
;;
CREATE TABLE customer (
    c_w_id int, c_d_id smallint, c_id int, c_first varchar(16) NOT NULL,
    c_middle char(2) NOT NULL, c_last varchar(16) NOT NULL, c_street_1 varchar(20) NOT NULL,
    c_street_2 varchar(20) NOT NULL, c_city varchar(20) NOT NULL, c_state char(2) NOT NULL,
    c_zip char(9) NOT NULL, c_phone char(16) NOT NULL, c_since bigint NOT NULL,
    c_credit char(2) NOT NULL, c_credit_lim bigint NOT NULL, c_discount int NOT NULL,
    c_balance bigint NOT NULL, c_ytd_payment bigint NOT NULL, c_payment_cnt int NOT NULL,
    c_delivery_cnt int NOT NULL, c_data varchar(500) NOT NULL,
    PRIMARY KEY (c_w_id, c_d_id, c_id),
    KEY customer_by_name (c_w_id, c_d_id, c_last, c_first, c_id))
;;
CREATE TABLE history (
    h_c_w_id int, h_c_d_id smallint, h_c_id int, h_number int,
    h_w_id int NOT NULL, h_d_id smallint NOT NULL, h_date bigint NOT NULL,
    h_amount bigint NOT NULL, h_data varchar(24) NOT NULL,
    PRIMARY KEY (h_c_w_id, h_c_d_id, h_c_id, h_number))
;;
CREATE TABLE orders (
    o_w_id int, o_d_id smallint, o_id int, o_c_id int NOT NULL, o_entry_d bigint NOT NULL,
    o_carrier_id smallint, o_ol_cnt smallint NOT NULL, o_all_local smallint NOT NULL,
    PRIMARY KEY (o_w_id, o_d_id, o_id),
    KEY orders_by_customer (o_w_id, o_d_id, o_c_id, o_id))
;;
CREATE TABLE new_order (
    no_w_id int, no_d_id smallint, no_o_id int, PRIMARY KEY (no_w_id, no_d_id, no_o_id))
;;
CREATE TABLE order_line (
    ol_w_id int, ol_d_id smallint, ol_o_id int, ol_number smallint, ol_i_id int NOT NULL,
    ol_supply_w_id int NOT NULL, ol_delivery_d bigint, ol_quantity smallint NOT NULL,
    ol_amount bigint NOT NULL, ol_dist_info char(24) NOT NULL,
    PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number))
;;
-- A line is 18 digits: two of its number, seven of its item, seven of its warehouse, two of its
-- quantity.
CREATE PROCEDURE tpcc_new_order(w int, d smallint, c int, entered bigint, all_local smallint,
    line_count smallint, packed varchar(270))
BEGIN
    DECLARE i, at int DEFAULT 1;
    DECLARE o, tax_w, tax_d, discount, line, item, supply, quantity, price, stocked int;
    DECLARE amount, line_sum bigint DEFAULT 0;
    DECLARE last, name varchar(24);
    DECLARE credit char(2);
    DECLARE item_data, stock_data varchar(50);
    DECLARE info char(24);
    DECLARE shown varchar(1000) DEFAULT '';
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    START TRANSACTION;
    SELECT w_tax INTO tax_w FROM warehouse WHERE w_id = w;
    SELECT c_discount, c_last, c_credit INTO discount, last, credit FROM customer
        WHERE c_w_id = w AND c_d_id = d AND c_id = c;
    SELECT d_next_o_id, d_tax INTO o, tax_d FROM district
        WHERE d_w_id = w AND d_id = d FOR UPDATE;
    UPDATE district SET d_next_o_id = o + 1 WHERE d_w_id = w AND d_id = d;
    INSERT INTO orders VALUES (w, d, o, c, entered, NULL, line_count, all_local);
    INSERT INTO new_order VALUES (w, d, o);
    WHILE i <= line_count DO
        SET line = substr(packed, at, 2), item = substr(packed, at + 2, 7),
            supply = substr(packed, at + 9, 7), quantity = substr(packed, at + 16, 2);
        SET price = NULL;
        SELECT i_price, i_name, i_data INTO price, name, item_data FROM item WHERE i_id = item;
        IF price IS NULL THEN
            SIGNAL SQLSTATE 'P0001' SET MESSAGE_TEXT = 'Item number is not valid';
        END IF;
        SELECT s_quantity, s_data, CASE d
                WHEN 1 THEN s_dist_01 WHEN 2 THEN s_dist_02 WHEN 3 THEN s_dist_03
                WHEN 4 THEN s_dist_04 WHEN 5 THEN s_dist_05 WHEN 6 THEN s_dist_06
                WHEN 7 THEN s_dist_07 WHEN 8 THEN s_dist_08 WHEN 9 THEN s_dist_09
                ELSE s_dist_10 END
            INTO stocked, stock_data, info FROM stock
            WHERE s_w_id = supply AND s_i_id = item FOR UPDATE;
        SET stocked = stocked - quantity + IF(stocked - quantity < 10, 91, 0);
        UPDATE stock SET s_quantity = stocked, s_ytd = s_ytd + quantity,
            s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + IF(supply = w, 0, 1)
            WHERE s_w_id = supply AND s_i_id = item;
        SET amount = quantity * price, line_sum = line_sum + quantity * price;
        INSERT INTO order_line VALUES (w, d, o, line, item, supply, NULL, quantity, amount, info);
        SET shown = concat(shown, amount, ' ', price, ' ', name, ' ', stocked, ' ',
            IF(instr(item_data, 'ORIGINAL') > 0 AND instr(stock_data, 'ORIGINAL') > 0, 'B', 'G'),
            '\n');
        SET i = i + 1, at = at + 18;
    END WHILE;
    COMMIT;
    -- Half a cent is rounded up.
    SELECT o, (line_sum * (10000 - discount) * (10000 + tax_w + tax_d) + 50000000) DIV 100000000,
        tax_w, tax_d, discount, last, credit, shown;
END
;;
CREATE PROCEDURE tpcc_payment(w int, d smallint, cw int, cd smallint, c int, named varchar(16),
    amount bigint, paid_at bigint)
BEGIN
    DECLARE namesakes, payments int;
    DECLARE name_w, name_d varchar(10);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    START TRANSACTION;
    UPDATE warehouse SET w_ytd = w_ytd + amount WHERE w_id = w;
    SELECT w_name INTO name_w FROM warehouse WHERE w_id = w;
    UPDATE district SET d_ytd = d_ytd + amount WHERE d_w_id = w AND d_id = d;
    SELECT d_name INTO name_d FROM district WHERE d_w_id = w AND d_id = d;
    IF c IS NULL THEN
        -- The one in the middle, of an even number the one before the middle.
        SELECT greatest(count(*) - 1, 0) DIV 2 INTO namesakes FROM customer
            WHERE c_w_id = cw AND c_d_id = cd AND c_last = named;
        SELECT c_id INTO c FROM customer WHERE c_w_id = cw AND c_d_id = cd AND c_last = named
            ORDER BY c_first, c_id LIMIT namesakes, 1;
        IF c IS NULL THEN
            SIGNAL SQLSTATE 'P0002' SET MESSAGE_TEXT = 'nobody has this name';
        END IF;
    END IF;
    UPDATE customer SET c_balance = c_balance - amount, c_ytd_payment = c_ytd_payment + amount,
        c_payment_cnt = c_payment_cnt + 1,
        c_data = IF(c_credit = 'BC', left(concat(c, ' ', cd, ' ', cw, ' ', d, ' ', w, ' ',
            amount DIV 100, '.', lpad(amount % 100, 2, '0'), ' ', c_data), 500), c_data)
        WHERE c_w_id = cw AND c_d_id = cd AND c_id = c;
    SELECT c_payment_cnt INTO payments FROM customer
        WHERE c_w_id = cw AND c_d_id = cd AND c_id = c;
    INSERT INTO history VALUES (cw, cd, c, payments, w, d, paid_at, amount,
        concat(name_w, '    ', name_d));
    SELECT * FROM warehouse, district, customer WHERE w_id = w AND d_w_id = w AND d_id = d
        AND c_w_id = cw AND c_d_id = cd AND c_id = c;
    COMMIT;
END
