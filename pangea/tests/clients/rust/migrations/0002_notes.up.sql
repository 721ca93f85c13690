alter table accounts add column note text;
update accounts set note = 'first' where owner = 'ada';
