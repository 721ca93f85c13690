import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import jakarta.persistence.CascadeType;
import jakarta.persistence.Column;
import jakarta.persistence.Entity;
import jakarta.persistence.EnumType;
import jakarta.persistence.Enumerated;
import jakarta.persistence.FetchType;
import jakarta.persistence.GeneratedValue;
import jakarta.persistence.GenerationType;
import jakarta.persistence.Id;
import jakarta.persistence.Index;
import jakarta.persistence.ManyToOne;
import jakarta.persistence.OneToMany;
import jakarta.persistence.Table;
import jakarta.persistence.Version;
import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.hibernate.SessionFactory;
import org.hibernate.cfg.Configuration;

/** JDBC: types, batches, fetch sizes, savepoints, metadata; HikariCP; Hibernate. */
public class Main {
    @Entity(name = "Author")
    @Table(name = "h_author")
    public static class Author {
        @Id
        @GeneratedValue(strategy = GenerationType.IDENTITY)
        Long id;

        @Column(unique = true, nullable = false, length = 50)
        String name;

        @OneToMany(mappedBy = "author", cascade = CascadeType.ALL, orphanRemoval = true)
        List<Book> books = new ArrayList<>();

        LocalDate born;
        @Version int version;
    }

    @Entity(name = "Book")
    @Table(name = "h_book", indexes = @Index(columnList = "title"))
    public static class Book {
        @Id
        @GeneratedValue(strategy = GenerationType.SEQUENCE)
        Long id;

        String title;
        BigDecimal price;
        Instant added = Instant.now();
        UUID code = UUID.randomUUID();

        @Enumerated(EnumType.STRING)
        Kind kind = Kind.NOVEL;

        @ManyToOne(fetch = FetchType.LAZY)
        Author author;
    }

    public enum Kind {
        NOVEL,
        POEM
    }

    static void check(boolean isSo, String what) {
        if (!isSo) {
            throw new AssertionError(what);
        }
    }

    static int count(ResultSet rows) throws SQLException {
        int count = 0;
        while (rows.next()) {
            count++;
        }
        return count;
    }

    static void withJdbc(String url) throws SQLException {
        try (Connection connection = DriverManager.getConnection(url)) {
            Statement statement = connection.createStatement();
            statement.execute(
                    "create table j (id serial primary key, s varchar(20) not null, n numeric(8, 2),"
                            + " t timestamptz, b boolean, d date, by bytea, arr int[], u uuid,"
                            + " unique (s, n))");
            insertBatch(connection);
            connection.setAutoCommit(false);
            PreparedStatement few =
                    connection.prepareStatement("select * from j where id > ? order by id");
            few.setFetchSize(5);
            few.setInt(1, 2);
            ResultSet rows = few.executeQuery();
            int seen = 0;
            while (rows.next()) {
                seen++;
                check(rows.getBigDecimal("n").scale() == 2, "numeric");
                check(((Integer[]) rows.getArray("arr").getArray())[0] == 1, "array");
                check(rows.getObject("u") instanceof UUID, "uuid");
            }
            check(seen == 18, "rows in portions: " + seen);
            Savepoint before = connection.setSavepoint();
            try {
                statement.execute("insert into j (id, s) values (1, 'x')");
                throw new AssertionError("a duplicate was accepted");
            } catch (SQLException error) {
                check(error.getSQLState().equals("23505"), error.getMessage());
                connection.rollback(before);
            }
            connection.commit();
            connection.setAutoCommit(true);
            // From the fifth execution on the driver prepares a statement on the server.
            PreparedStatement again =
                    connection.prepareStatement("select count(*) from j where id > ?");
            for (int from = 0; from < 12; from++) {
                again.setInt(1, from);
                ResultSet found = again.executeQuery();
                found.next();
                check(found.getInt(1) == 20 - from, "prepared on the server");
            }
            checkMetadata(connection.getMetaData());
            statement.execute("drop table j");
        }
    }

    static void insertBatch(Connection connection) throws SQLException {
        String sql = "insert into j (s, n, t, b, d, by, arr, u) values (?, ?, ?, ?, ?, ?, ?, ?)";
        PreparedStatement insert =
                connection.prepareStatement(sql, Statement.RETURN_GENERATED_KEYS);
        for (int i = 0; i < 20; i++) {
            insert.setString(1, "s" + i);
            insert.setBigDecimal(2, new BigDecimal(i + ".50"));
            insert.setTimestamp(3, new Timestamp(0));
            insert.setBoolean(4, i % 2 == 0);
            insert.setDate(5, java.sql.Date.valueOf("2020-01-02"));
            insert.setBytes(6, new byte[] {1, 2});
            insert.setArray(7, connection.createArrayOf("int4", new Integer[] {1, i}));
            insert.setObject(8, UUID.randomUUID());
            insert.addBatch();
        }
        check(insert.executeBatch().length == 20, "batch");
        check(count(insert.getGeneratedKeys()) == 20, "generated keys");
    }

    static void checkMetadata(DatabaseMetaData data) throws SQLException {
        String[] kinds = {"TABLE", "VIEW"};
        check(count(data.getTables(null, "public", "j", kinds)) == 1, "tables");
        check(count(data.getColumns(null, "public", "j", "%")) == 9, "columns");
        check(count(data.getPrimaryKeys(null, "public", "j")) == 1, "primary keys");
        check(count(data.getIndexInfo(null, "public", "j", false, false)) == 3, "indexes");
        check(count(data.getImportedKeys(null, "public", "j")) == 0, "imported keys");
        check(count(data.getExportedKeys(null, "public", "j")) == 0, "exported keys");
        check(count(data.getCrossReference(null, "public", "j", null, "public", "j")) == 0, "keys");
        // public, pangea, pg_catalog and information_schema.
        check(count(data.getSchemas()) == 4, "schemas");
        check(count(data.getTypeInfo()) > 20, "types");
        check(count(data.getCatalogs()) == 1, "catalogs");
        check(count(data.getTableTypes()) > 1, "table types");
        check(count(data.getTablePrivileges(null, "public", "j")) == 7, "privileges");
        check(count(data.getColumnPrivileges(null, "public", "j", "s")) > 0, "of columns");
        check(count(data.getProcedures(null, "public", "%")) == 0, "procedures");
        check(count(data.getFunctions(null, "public", "%")) == 0, "functions");
        check(count(data.getUDTs(null, "public", "%", null)) == 0, "types of users");
        int session = DatabaseMetaData.bestRowSession;
        check(count(data.getBestRowIdentifier(null, "public", "j", session, true)) == 1, "row");
    }

    static Configuration configuration(HikariDataSource source, String action) {
        Configuration configuration = new Configuration();
        configuration.addAnnotatedClass(Author.class).addAnnotatedClass(Book.class);
        configuration.getProperties().put("hibernate.connection.datasource", source);
        return configuration.setProperty("hibernate.hbm2ddl.auto", action);
    }

    static void withHibernate(HikariDataSource source) {
        try (SessionFactory factory = configuration(source, "update").buildSessionFactory()) {
            factory.inTransaction(
                    session -> {
                        Author ann = new Author();
                        ann.name = "ann";
                        for (int i = 0; i < 3; i++) {
                            Book book = new Book();
                            book.title = "t" + i;
                            book.price = new BigDecimal("1.5");
                            book.author = ann;
                            ann.books.add(book);
                        }
                        session.persist(ann);
                    });
            factory.inTransaction(
                    session -> {
                        String query = "from Author a join fetch a.books where a.name = :name";
                        Author ann =
                                session.createQuery(query, Author.class)
                                        .setParameter("name", "ann")
                                        .getSingleResult();
                        check(ann.books.size() == 3, "books");
                        ann.born = LocalDate.of(1970, 1, 1);
                        ann.books.remove(0);
                    });
            factory.inTransaction(
                    session -> {
                        String sums =
                                "select a.name, count(b), sum(b.price) from Author a"
                                        + " left join a.books b group by a.name";
                        Object[] row = session.createQuery(sums, Object[].class).list().get(0);
                        check(row[1].equals(2L), "count " + row[1]);
                        String some = "from Book where title like 't%' and kind = :kind order by id";
                        int found =
                                session.createQuery(some, Book.class)
                                        .setParameter("kind", Kind.NOVEL)
                                        .setMaxResults(1)
                                        .list()
                                        .size();
                        check(found == 1, "found");
                        session.createMutationQuery("update Book set price = price * 2")
                                .executeUpdate();
                    });
        }
        configuration(source, "validate").buildSessionFactory().close();
        configuration(source, "create-drop").buildSessionFactory().close();
    }

    public static void main(String[] arguments) throws Exception {
        Logger.getLogger("").setLevel(Level.SEVERE);
        String url = "jdbc:postgresql://127.0.0.1:" + arguments[0] + "/pangea?user=pangea";
        withJdbc(url);
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(url);
        config.setMaximumPoolSize(4);
        try (HikariDataSource source = new HikariDataSource(config)) {
            withHibernate(source);
        }
        System.out.println("ok");
    }
}
