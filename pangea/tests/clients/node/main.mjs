// node-postgres and Drizzle: types, prepared statements, cursors, pools, relations.

import assert from 'node:assert/strict';

import { and, count, desc, eq, gt, relations, sql } from 'drizzle-orm';
import { drizzle } from 'drizzle-orm/node-postgres';
import {
  boolean, integer, jsonb, numeric, pgTable, serial, text, timestamp, uuid,
} from 'drizzle-orm/pg-core';
import pg from 'pg';
import Cursor from 'pg-cursor';

const at = { host: '127.0.0.1', port: Number(process.argv[2]), user: 'pangea', database: 'pangea' };

async function withNodePostgres() {
  const client = new pg.Client(at);
  await client.connect();
  await client.query(`
    create table n_users (id serial primary key, name text not null, meta jsonb,
      created timestamptz default now(), u uuid default gen_random_uuid());
    create table n_posts (id serial primary key, user_id int references n_users (id), title text,
      ok boolean, price numeric(8, 2))`);
  const insert = 'insert into n_users (name, meta) values ($1, $2) returning *';
  const { rows: [ann] } = await client.query(insert, ['ann', { a: 1 }]);
  assert.deepEqual([ann.name, ann.meta, ann.created instanceof Date], ['ann', { a: 1 }, true]);
  const named = {
    name: 'types',
    text: 'select $1::int + 1 as x, $2::text[] as y, $3::bytea as b',
  };
  for (const x of [1, 2]) {
    const values = [x, ['a', 'b'], Buffer.from([0, 255])];
    const { rows: [row] } = await client.query({ ...named, values });
    assert.deepEqual([row.x, row.y, [...row.b]], [x + 1, ['a', 'b'], [0, 255]]);
  }
  const wrong = { code: '42P01', position: '15' };
  await assert.rejects(client.query('select * from nothing'), wrong);
  const cursor = client.query(new Cursor('select generate_series(1, 25) as i'));
  assert.deepEqual([(await cursor.read(10)).length, (await cursor.read(100)).length], [10, 15]);
  await cursor.close();
  await client.end();
}

const users = pgTable('n_users', {
  id: serial('id').primaryKey(),
  name: text('name').notNull(),
  meta: jsonb('meta'),
  created: timestamp('created', { withTimezone: true }).defaultNow(),
  u: uuid('u'),
});
const posts = pgTable('n_posts', {
  id: serial('id').primaryKey(),
  userId: integer('user_id').references(() => users.id),
  title: text('title'),
  ok: boolean('ok'),
  price: numeric('price'),
});
const usersRelations = relations(users, ({ many }) => ({ posts: many(posts) }));
const postsRelations = relations(posts, ({ one }) => ({
  user: one(users, { fields: [posts.userId], references: [users.id] }),
}));

async function withDrizzle() {
  const pool = new pg.Pool({ ...at, max: 4 });
  const asked = [1, 2, 3, 4, 5, 6].map((i) => pool.query('select $1::int as i', [i]));
  assert.deepEqual((await Promise.all(asked)).map(({ rows }) => rows[0].i), [1, 2, 3, 4, 5, 6]);
  const db = drizzle(pool, { schema: { users, posts, usersRelations, postsRelations } });
  const [bob] = await db.insert(users).values({ name: 'bob' }).returning();
  await db.insert(posts).values([
    { userId: bob.id, title: 'a', ok: true, price: '1.5' },
    { userId: bob.id, title: 'b', ok: false },
  ]);
  const counted = db.select({ name: users.name, n: count(posts.id) }).from(users)
    .leftJoin(posts, eq(users.id, posts.userId)).groupBy(users.name).orderBy(desc(users.name));
  assert.deepEqual(await counted, [{ name: 'bob', n: 2 }, { name: 'ann', n: 0 }]);
  const [nested] = await db.query.users.findMany({
    with: { posts: true }, where: eq(users.name, 'bob'), columns: { name: true },
  });
  assert.deepEqual(nested.posts.map(({ title }) => title).sort(), ['a', 'b']);
  await db.transaction(async (tx) => {
    await tx.update(posts).set({ title: sql`${posts.title} || '!'` }).where(gt(posts.id, 1));
    await assert.rejects(tx.transaction(async (inner) => {
      await inner.delete(posts);
      inner.rollback();
    }));
  });
  assert.equal(await db.$count(posts), 2);
  await db.insert(users).values({ id: bob.id, name: 'x' })
    .onConflictDoUpdate({ target: users.id, set: { name: 'bobby' } });
  const [row] = await db.select().from(users).where(and(eq(users.id, bob.id)));
  assert.equal(row.name, 'bobby');
  await pool.query('drop table n_posts, n_users');
  await pool.end();
}

await withNodePostgres();
await withDrizzle();
console.log('ok');
