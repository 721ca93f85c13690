alter table accounts drop column note;
