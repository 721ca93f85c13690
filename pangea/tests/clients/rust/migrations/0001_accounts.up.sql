-- Each migration is one transaction.
create table accounts (id bigserial primary key, owner text not null, balance numeric(12, 2) not null check (balance >= 0));
create unique index accounts_owner on accounts (owner);
insert into accounts (owner, balance) values ('ada', 10.50), ('bob', 0);
