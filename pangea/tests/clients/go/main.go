// pgx and GORM: types, COPY, batches, pools; migrations, relations, conflicts.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
)

type Author struct {
	ID      uint   `gorm:"primaryKey"`
	Name    string `gorm:"uniqueIndex;size:100"`
	Born    *time.Time
	Books   []Book
	Created time.Time `gorm:"autoCreateTime"`
}
type Book struct {
	gorm.Model
	Title    string `gorm:"index:title_idx"`
	AuthorID uint
	Price    float64        `gorm:"type:numeric(8,2);check:price >= 0"`
	Data     map[string]int `gorm:"serializer:json"`
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func expect[T comparable](got, wanted T) {
	if got != wanted {
		panic(fmt.Sprint("got ", got, " and not ", wanted))
	}
}

func withPgx(ctx context.Context, url string) {
	conn, err := pgx.Connect(ctx, url)
	check(err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, `create table g (id bigserial primary key, s text, n numeric,
		t timestamptz, a int[], j jsonb, u uuid, d date, b bytea)`)
	check(err)
	var id int64
	now := time.Now()
	check(conn.QueryRow(ctx,
		"insert into g (s, n, t, a, j, d, b) values ($1, $2, $3, $4, $5, $6, $7) returning id",
		"x", 1.5, now, []int32{1, 2}, map[string]any{"k": 1}, now, []byte{1, 2}).Scan(&id))
	expect(id, 1)
	copied, err := conn.CopyFrom(ctx, pgx.Identifier{"g"}, []string{"s", "a"},
		pgx.CopyFromRows([][]any{{"c1", []int32{3}}, {"c2", nil}}))
	check(err)
	expect(copied, 2)
	batch := &pgx.Batch{}
	for number := range 5 {
		batch.Queue("insert into g (s) values ($1)", fmt.Sprint(number))
	}
	check(conn.SendBatch(ctx, batch).Close())
	rows, err := conn.Query(ctx, "select * from g order by id")
	check(err)
	seen := 0
	for rows.Next() {
		_, err := rows.Values()
		check(err)
		seen++
	}
	expect(seen, 8)
	check(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "update g set s = 'u' where id = 1"); err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
			_, err := inner.Exec(ctx, "delete from g where id = 2")
			return err
		})
	}))
	pool, err := pgxpool.New(ctx, url)
	check(err)
	defer pool.Close()
	check(pool.QueryRow(ctx, "select count(*) from g").Scan(&id))
	expect(id, 7)
}

func withGorm(url string) {
	db, err := gorm.Open(postgres.Open(url), &gorm.Config{Logger: logger.Discard})
	check(err)
	check(db.AutoMigrate(&Author{}, &Book{}))
	// What is there already is found to be.
	check(db.AutoMigrate(&Author{}, &Book{}))
	ann := Author{Name: "ann", Books: []Book{
		{Title: "t1", Price: 1.5, Data: map[string]int{"a": 1}},
		{Title: "t2", Price: 2},
	}}
	check(db.Create(&ann).Error)
	unless := clause.OnConflict{Columns: []clause.Column{{Name: "name"}}, DoNothing: true}
	check(db.Clauses(unless).Create(&Author{Name: "ann"}).Error)
	var found Author
	check(db.Preload("Books").First(&found, "name = ?", "ann").Error)
	expect(len(found.Books), 2)
	expect(found.Books[0].Data["a"], 1)
	check(db.Model(&Book{}).Where("title = ?", "t1").Update("price", gorm.Expr("price * ?", 2)).Error)
	var counted []struct {
		Name string
		N    int
	}
	check(db.Model(&Author{}).Select("authors.name, count(books.id) as n").
		Joins("left join books on books.author_id = authors.id").
		Group("authors.name").Scan(&counted).Error)
	expect(counted[0].N, 2)
	check(db.Transaction(func(tx *gorm.DB) error {
		return tx.Delete(&Book{}, "title = ?", "t2").Error
	}))
	var left int64
	check(db.Model(&Book{}).Count(&left).Error)
	expect(left, 1)
	expect(db.Migrator().HasTable(&Book{}), true)
	expect(db.Migrator().HasIndex(&Book{}, "title_idx"), true)
	expect(db.Migrator().HasColumn(&Book{}, "price"), true)
	columns, err := db.Migrator().ColumnTypes(&Book{})
	check(err)
	expect(len(columns), 8)
	if db.Create(&Book{Title: "bad", Price: -1, AuthorID: ann.ID}).Error == nil {
		panic("a constraint was ignored")
	}
}

func main() {
	url := fmt.Sprintf("postgres://pangea@127.0.0.1:%s/pangea?sslmode=disable", os.Args[1])
	withPgx(context.Background(), url)
	withGorm(url)
	fmt.Println("ok")
}
