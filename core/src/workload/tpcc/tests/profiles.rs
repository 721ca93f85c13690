//! Tests that each transaction does exactly what its profile in clause 2 specifies.

use super::*;
use crate::codec::{DecodeError, Reader};
use crate::txn::{Abort, Procedure, SqlState, Stop};
use crate::workload::tpcc::args::{
    DeliveryArgs, Line, NewOrderArgs, OrderStatusArgs, PaymentArgs, StockLevelArgs, Who,
};
use crate::workload::tpcc::rows::{Site, Stock, Terms};

const DATE: Date = Date { seconds: 1_700_000_000 };

fn run<'a>(
    model: &mut Model,
    procedure: &dyn Procedure,
    args: &impl Args<'a>,
) -> Result<Vec<u8>, Abort> {
    let mut bytes = Vec::new();
    args.encode(&mut bytes);
    model.run(procedure, &bytes).map_err(|stop| match stop {
        Stop::Abort(abort) => abort,
        Stop::Interrupted => panic!("the model does not interrupt"),
    })
}

fn loaded() -> Model {
    Bench::new("tpcc", &small()).model
}

fn order_of(lines: &[(u32, u32, u8)]) -> NewOrderArgs {
    let mut all_lines = [NewOrderArgs::NO_LINE; 15];
    for (line, &(item, supply, quantity)) in all_lines.iter_mut().zip(lines) {
        *line = Line { item, supply: Warehouse(supply), quantity };
    }
    let line_count = lines.len();
    NewOrderArgs { district: district(1, 3), customer: 4, entry: DATE, line_count, all_lines }
}

fn set_stock(model: &mut Model, warehouse: u32, item: u32, quantity: u32) {
    let stock = Stock { quantity, ytd: 100, orders: 5, remote_orders: 1 };
    write(model, STOCK, &Warehouse(warehouse).stock_key(item), &stock);
}

fn line_of(model: &Model, key: &[u8]) -> (u64, u32, u32, u8, Option<Date>, Vec<u8>) {
    let record = record(model, ORDER_LINE, key);
    let line = OrderLine::decode(&record).expect("the row is well formed");
    (line.amount, line.item, line.supply, line.quantity, line.delivery, line.info.to_vec())
}

#[test]
fn a_new_order_takes_stock_and_enters_the_order_and_its_lines() {
    let mut model = loaded();
    set_stock(&mut model, 1, 7, 12);
    set_stock(&mut model, 2, 8, 12);
    let args = order_of(&[(7, 1, 2), (8, 2, 3)]);
    let before = model.clone();
    let result = run(&mut model, &new_order::NewOrder, &args).expect("it commits");

    let home = district(1, 3);
    assert_eq!(read::<Number>(&model, DISTRICT_NEXT_ORDER, &home.key()), Number(32));
    let order: Order = read(&model, ORDER, &home.row_key(31));
    let expected = Order { customer: 4, entry: DATE, carrier: None, lines: 2, is_all_local: false };
    assert_eq!(order, expected);
    record(&model, NEW_ORDER, &home.row_key(31));
    record(&model, ORDER_BY_CUSTOMER, &home.row_of_row_key(4, 31));
    // 12 - 2 leaves ten; 12 - 3 would leave less, so 91 are added.
    let stock: Stock = read(&model, STOCK, &Warehouse(1).stock_key(7));
    assert_eq!(stock, Stock { quantity: 10, ytd: 102, orders: 6, remote_orders: 1 });
    let stock: Stock = read(&model, STOCK, &Warehouse(2).stock_key(8));
    assert_eq!(stock, Stock { quantity: 100, ytd: 103, orders: 6, remote_orders: 2 });

    let price = |item: u32| {
        let record = record(&model, ITEM, &item.to_be_bytes());
        u64::from(Item::decode(&record).expect("well formed").price)
    };
    let info = record(&model, STOCK_INFO, &Warehouse(2).stock_key(8));
    let info = StockInfo::decode(&info).expect("well formed").of_district(3).to_vec();
    let line = (3 * price(8), 8, 2, 3, None, info);
    assert_eq!(line_of(&model, &home.line_key(31, 2)), line);
    let sum = 2 * price(7) + 3 * price(8);
    assert_eq!(shown_total(&result), Ok((31, sum)));
    let changed = [STOCK, DISTRICT_NEXT_ORDER, ORDER, NEW_ORDER, ORDER_BY_CUSTOMER, ORDER_LINE];
    for table in (WAREHOUSE.0..=STOCK_INFO.0).map(TableId) {
        let more = model.len(table) - before.len(table);
        let rows = |model: &Model| {
            let keys = keys(model, table, &KeyRange::all());
            keys.iter().map(|key| record(model, table, key)).collect::<Vec<_>>()
        };
        assert_eq!(rows(&model) != rows(&before), changed.contains(&table), "table {table}");
        let expected = match table {
            ORDER | NEW_ORDER | ORDER_BY_CUSTOMER => 1,
            ORDER_LINE => 2,
            _ => 0,
        };
        assert_eq!(more, expected, "rows of table {table}");
    }
}

/// Decodes the order's number and the sum of its lines, and checks that the total follows from
/// them.
fn shown_total(result: &[u8]) -> Result<(u64, u64), DecodeError> {
    let from = &mut Reader::new(result);
    let (number, total) = (from.varint("number")?, from.varint("total")?);
    let tax = from.varint("tax")? + from.varint("tax")?;
    let discount = Terms::read(from)?.discount;
    let mut sum = 0;
    while !from.is_empty() {
        sum += from.varint("amount")?;
        from.varint("price")?;
        from.bytes("name")?;
        from.varint("quantity")?;
        assert!([b'B', b'G'].contains(&from.u8("brand")?));
    }
    let exact = sum as f64 * (1.0 - discount as f64 / 1e4) * (1.0 + tax as f64 / 1e4);
    assert!((total as f64 - exact).abs() <= 0.5 + 1e-6, "{total} is not {exact}");
    Ok((number, sum))
}

#[test]
fn a_brand_is_an_item_whose_data_and_stock_both_say_original() {
    for (item_data, stock_data, brand) in [
        ("an ORIGINAL thing", "ORIGINAL", b'B'),
        ("ORIGINAL", "not ORIGINA", b'G'),
        ("original", "ORIGINAL", b'G'),
    ] {
        let mut model = loaded();
        let item = Item { price: 1, name: b"thing", data: item_data.as_bytes(), image: 1 };
        write(&mut model, ITEM, &7_u32.to_be_bytes(), &item);
        let info = StockInfo { districts: &[b'x'; 240], data: stock_data.as_bytes() };
        write(&mut model, STOCK_INFO, &Warehouse(1).stock_key(7), &info);
        let args = order_of(&[(7, 1, 1)]);
        let result = run(&mut model, &new_order::NewOrder, &args).expect("it commits");
        assert_eq!(result.last(), Some(&brand), "{item_data}, {stock_data}");
    }
}

#[test]
fn a_new_order_of_an_item_that_does_not_exist_changes_nothing() {
    let mut model = loaded();
    let before = model.clone();
    let args = order_of(&[(7, 1, 2), (101, 1, 3)]);
    let abort = run(&mut model, &new_order::NewOrder, &args).expect_err("no such item");
    assert_eq!(
        (abort.code, &abort.message[..]),
        (SqlState::RAISE_EXCEPTION, "Item number is not valid")
    );
    assert!(model == before);
}

#[test]
fn a_new_order_may_name_an_item_twice() {
    let mut model = loaded();
    set_stock(&mut model, 1, 7, 50);
    let args = order_of(&[(7, 1, 2), (7, 1, 3)]);
    run(&mut model, &new_order::NewOrder, &args).expect("it commits");
    let stock: Stock = read(&model, STOCK, &Warehouse(1).stock_key(7));
    assert_eq!(stock, Stock { quantity: 45, ytd: 105, orders: 7, remote_orders: 1 });
}

/// Sets whether customer 5 of warehouse 2, district 4 has bad credit.
fn set_credit(model: &mut Model, is_bad_credit: bool) {
    let key = district(2, 4).row_key(5);
    let before = record(model, CUSTOMER, &key);
    let customer = Customer::decode(&before).expect("the row is well formed");
    let terms = Terms { is_bad_credit, ..customer.terms };
    write(model, CUSTOMER, &key, &Customer { terms, ..customer });
}

fn payment_by(who: Who<'_>) -> PaymentArgs<'_> {
    let (district, customer_district) = (district(1, 3), district(2, 4));
    PaymentArgs { district, customer_district, who, amount: 12_345, date: DATE }
}

#[test]
fn a_payment_is_booked_on_the_warehouse_the_district_and_the_customer() {
    for is_bad_credit in [false, true] {
        let mut model = loaded();
        set_credit(&mut model, is_bad_credit);
        let (home, customer) = (district(1, 3), district(2, 4));
        let data_before = Value::copy_from(&[b'x'; 490]);
        let key = Key::from(&customer.row_key(5)[..]);
        model.put(CUSTOMER_DATA, key, Some(data_before.clone()));
        let args = payment_by(Who::Number(5));
        run(&mut model, &payment::Payment, &args).expect("it commits");

        let Number(ytd) = read(&model, WAREHOUSE_YTD, &Warehouse(1).key());
        assert_eq!(ytd, 10 * 30 * 1_000 + 12_345);
        let Number(ytd) = read(&model, DISTRICT_YTD, &home.key());
        assert_eq!(ytd, 30 * 1_000 + 12_345);
        let account: Account = read(&model, CUSTOMER_ACCOUNT, &customer.row_key(5));
        let (balance, ytd_payment) = (-1_000 - 12_345, 1_000 + 12_345);
        assert_eq!(account, Account { balance, ytd_payment, payments: 2, deliveries: 0 });

        let record_of = |table, key: &[u8]| record(&model, table, key);
        let history = record_of(HISTORY, &customer.row_of_row_key(5, 2));
        let history = History::decode(&history).expect("well formed");
        let name = |table, key: &[u8]| {
            let site = record_of(table, key);
            Site::decode(&site).expect("well formed").name.to_vec()
        };
        let (warehouse, district) =
            (name(WAREHOUSE, &Warehouse(1).key()), name(DISTRICT, &home.key()));
        assert_eq!(history.data, [&warehouse[..], b"    ", &district[..]].concat());
        assert_eq!((history.warehouse, history.district, history.amount), (1, 3, 12_345));

        let data = record_of(CUSTOMER_DATA, &customer.row_key(5));
        if is_bad_credit {
            let note = b"5 4 2 3 1 123.45 ";
            assert_eq!(data[..note.len()], note[..]);
            assert_eq!(data[note.len()..], data_before[..data.len() - note.len()]);
            assert_eq!(data.len(), 500);
        } else {
            assert_eq!(data, data_before);
        }
    }
}

#[test]
fn of_namesakes_the_one_in_the_middle_by_first_name_is_meant() {
    // Clause 2.5.2.2: n / 2 rounded up, counted from 1.
    for (namesakes, meant) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
        let mut model = loaded();
        let firsts = ["ANNA", "BEA", "CLEO", "DORA", "EVE"];
        let name = b"SOMEBODY";
        for (first, customer) in firsts.iter().zip(1..=namesakes) {
            let key = district(2, 4).name_key(name, first.as_bytes(), 30 - customer);
            model.put(CUSTOMER_BY_NAME, key, Some(Value::copy_from(&[])));
        }
        // A longer name with the same prefix is a different name.
        let key = district(2, 4).name_key(b"SOMEBODYELSE", b"A", 29);
        model.put(CUSTOMER_BY_NAME, key, Some(Value::copy_from(&[])));
        run(&mut model, &payment::Payment, &payment_by(Who::LastName(name))).expect("it commits");
        let key = district(2, 4).row_key(30 - meant);
        let account: Account = read(&model, CUSTOMER_ACCOUNT, &key);
        assert_eq!(account.payments, 2, "of {namesakes}");
    }
    let mut model = loaded();
    let nobody = payment_by(Who::LastName(b"NOBODY"));
    let abort = run(&mut model, &payment::Payment, &nobody).expect_err("no customer has the name");
    assert_eq!(abort.code, SqlState::NO_DATA_FOUND);
}

#[test]
fn order_status_shows_the_last_order_and_all_of_its_lines() {
    let mut model = loaded();
    let status = |model: &mut Model, customer| {
        let args = OrderStatusArgs { district: district(1, 3), who: Who::Number(customer) };
        let result = run(model, &order_status::OrderStatus, &args).expect("it commits");
        let from = &mut Reader::new(&result);
        assert_eq!(from.varint("customer"), Ok(u64::from(customer)));
        from.bytes("customer").expect("well formed");
        from.bytes("account").expect("well formed");
        let number = from.varint("order").expect("well formed");
        let mut records = Vec::new();
        while !from.is_empty() {
            records.push(from.bytes("record").expect("well formed").to_vec());
        }
        (number, records)
    };
    let (first, records) = status(&mut model, 4);
    assert!((1..=30).contains(&first) && records.len() >= 6, "{first}");
    let args = order_of(&[(7, 1, 2), (8, 2, 3), (9, 1, 1)]);
    run(&mut model, &new_order::NewOrder, &args).expect("it commits");
    let (number, records) = status(&mut model, 4);
    assert_eq!((number, records.len()), (31, 1 + 3));
    let items: Vec<u32> = records[1..]
        .iter()
        .map(|record| OrderLine::decode(record).expect("well formed").item)
        .collect();
    assert_eq!(items, [7, 8, 9]);
}

#[test]
fn a_delivery_delivers_the_oldest_order_of_each_district_until_none_waits() {
    let mut model = loaded();
    let args = DeliveryArgs { warehouse: Warehouse(1), carrier: 7, date: DATE };
    let home = district(1, 3);
    let customer = read::<Order>(&model, ORDER, &home.row_key(22)).customer;
    let lines = keys(&model, ORDER_LINE, &KeyRange::prefix(&home.row_key(22)));
    let sum: u64 = lines.iter().map(|key| line_of(&model, key).0).sum();
    let delivered = run(&mut model, &delivery::Delivery, &args).expect("it commits");
    assert_eq!(delivered, [22; 10]);

    let order: Order = read(&model, ORDER, &home.row_key(22));
    assert_eq!(order.carrier, Some(7));
    assert!(lines.iter().all(|key| line_of(&model, key).4 == Some(DATE)));
    let account: Account = read(&model, CUSTOMER_ACCOUNT, &home.row_key(customer));
    assert_eq!((account.balance, account.deliveries), (sum as i64 - 1_000, 1));
    assert_eq!(model.get(NEW_ORDER, &home.row_key(22)), None);
    for order in 23..=30 {
        let delivered = run(&mut model, &delivery::Delivery, &args).expect("it commits");
        assert_eq!(delivered, [order; 10]);
    }
    let before = model.clone();
    let delivered = run(&mut model, &delivery::Delivery, &args).expect("it commits");
    assert_eq!(delivered, [0; 10], "no order waits");
    assert!(model == before);
}

#[test]
fn stock_level_counts_the_low_items_of_the_last_twenty_orders() {
    let mut model = loaded();
    let home = district(1, 3);
    let items_of = |model: &Model, orders: std::ops::RangeInclusive<u32>| -> BTreeSet<u32> {
        let keys_of = |order| keys(model, ORDER_LINE, &KeyRange::prefix(&home.row_key(order)));
        orders.flat_map(keys_of).map(|key| line_of(model, &key).1).collect()
    };
    // Order 10 is too old to be checked, order 11 is not; each gets a different item.
    let (old, last) = (101, 102);
    for (order, item) in [(10, old), (11, last)] {
        let line = OrderLine { delivery: None, amount: 1, item, supply: 1, quantity: 1, info: &[] };
        write(&mut model, ORDER_LINE, &home.line_key(order, 99), &line);
        set_stock(&mut model, 1, item, 10);
    }
    let items = items_of(&model, 11..=30);
    assert!(items.contains(&last) && !items.contains(&old));
    let quantity =
        |item: &u32| read::<Stock>(&model, STOCK, &Warehouse(1).stock_key(*item)).quantity;
    let low = items.iter().filter(|item| quantity(item) < 40).count();
    assert!(low > 3, "{low} of {} items are low", items.len());
    let args = StockLevelArgs { district: home, threshold: 40 };
    let result = run(&mut model, &stock_level::StockLevel, &args).expect("it commits");
    assert_eq!(result, [low as u8]);
}
