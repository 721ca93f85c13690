"""Django: migrations, its ORM, its introspection, and its admin."""

import datetime
import decimal
import shutil
import sys
import uuid

import django
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql", "NAME": "pangea", "USER": "pangea",
            "HOST": "127.0.0.1", "PORT": sys.argv[1],
        }
    },
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=[
        "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
        "django.contrib.messages", "django.contrib.postgres", "django.contrib.sessions", "shop",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    ROOT_URLCONF="shop.urls",
    SECRET_KEY="for tests",
    STATIC_URL="/static/",
    TEMPLATES=[{
        "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
        "OPTIONS": {"context_processors": [
            "django.template.context_processors.request",
            "django.contrib.auth.context_processors.auth",
            "django.contrib.messages.context_processors.messages",
        ]},
    }],
    TIME_ZONE="UTC",
    USE_TZ=True,
)
django.setup()


def main():
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import IntegrityError, connection, transaction
    from django.db.models import Avg, Count, Exists, F, Max, OuterRef, Sum, Value, Window
    from django.db.models.functions import Concat, ExtractYear, RowNumber, Upper
    from django.test import Client
    from shop.models import Author, Book, Tag

    shutil.rmtree("shop/migrations", ignore_errors=True)
    call_command("makemigrations", "shop", verbosity=0)
    call_command("migrate", verbosity=0)
    call_command("migrate", verbosity=0)

    ann = Author.objects.create(name="Ann", born=datetime.date(1970, 1, 2))
    bob = Author.objects.create(name="Bob")
    books = Book.objects.bulk_create([
        Book(
            title=f"t{number}", author=[ann, bob][number % 2], price=decimal.Decimal(number),
            data={"k": number, "l": [number]}, public_id=uuid.uuid4(),
            length=datetime.timedelta(hours=number),
        )
        for number in range(10)
    ])
    books[0].tags.add(Tag.objects.create(word="fun"))
    authors = Author.objects.annotate(n=Count("books"), s=Sum("books__price")).order_by("name")
    assert [(it.name, it.n, it.s) for it in authors] == [("Ann", 5, 20), ("Bob", 5, 25)]
    assert Book.objects.filter(title__icontains="T1", author__name__startswith="B").count() == 1
    assert Book.objects.filter(data__k__gt=3).count() == 6
    assert Book.objects.filter(data__l__0=2).exists()
    assert Book.objects.filter(tags__word="fun").distinct().count() == 1
    today = datetime.datetime.now(datetime.timezone.utc).date()
    assert Book.objects.filter(added__date=today).count() == 10
    assert Book.objects.dates("added", "year")[0].year == today.year
    sums = Book.objects.aggregate(Avg("price"), Max("price"), Sum("length"))
    assert sums["price__avg"] == decimal.Decimal("4.5")
    assert sums["length__sum"] == datetime.timedelta(hours=45)
    ranked = Window(RowNumber(), partition_by="author", order_by="-price")
    assert Book.objects.annotate(rank=ranked).filter(rank=1).count() == 2
    unborn = Author.objects.filter(born__isnull=True)
    assert Book.objects.filter(author__in=unborn).count() == 5
    assert Book.objects.filter(Exists(Tag.objects.filter(book=OuterRef("pk")))).count() == 1
    named = Book.objects.annotate(
        upper=Upper("title"), both=Concat("title", Value("-"), "author__name"),
        year=ExtractYear("added"),
    )
    assert named.get(title="t0").both == "t0-Ann" and named.get(title="t0").upper == "T0"
    assert Book.objects.filter(title__regex=r"^t[0-3]$").count() == 4
    few = Book.objects.filter(title__in=["t1", "t2"]).union(Book.objects.filter(title="t3"))
    assert few.count() == 3
    assert sum(1 for _ in Book.objects.iterator(chunk_size=3)) == 10

    Book.objects.filter(price__lt=3).update(price=F("price") * 2 + 1)
    for wrong in (
        lambda: Author.objects.create(name="Ann"),
        lambda: Book.objects.create(title="neg", author=ann, price=-1),
    ):
        try:
            with transaction.atomic():
                wrong()
            raise AssertionError("a constraint was ignored")
        except IntegrityError:
            pass
    with transaction.atomic():
        book = Book.objects.select_for_update().get(title="t5")
        book.flag = True
        book.save()
        savepoint = transaction.savepoint()
        Book.objects.all().delete()
        transaction.savepoint_rollback(savepoint)
    assert Book.objects.count() == 10
    Author.objects.bulk_create([Author(name="Ann"), Author(name="Zed")], ignore_conflicts=True)
    Author.objects.bulk_create(
        [Author(name="Ann", born=datetime.date(1999, 9, 9))], update_conflicts=True,
        unique_fields=["name"], update_fields=["born"],
    )
    assert Author.objects.get(name="Ann").born == datetime.date(1999, 9, 9)

    with connection.cursor() as cursor:
        seen = connection.introspection
        assert "shop_book" in seen.table_names(cursor)
        constraints = seen.get_constraints(cursor, "shop_book")
        assert {"one_title", "price_positive", "shop_book_pkey"} <= set(constraints)
        assert seen.get_relations(cursor, "shop_book") == {"author_id": ("id", "shop_author")}
        assert seen.get_sequences(cursor, "shop_book")[0]["column"] == "id"
    call_command("inspectdb", "shop_book", stdout=open("inspected.py", "w"))
    assert "unique_together = (('title', 'author'),)" in open("inspected.py").read()

    User.objects.create_superuser("root", "root@example.org", "password")
    client = Client()
    assert client.login(username="root", password="password")
    for page in (
        "", "shop/book/", "shop/book/?q=t1", "shop/book/?flag__exact=0", "shop/book/add/",
        "shop/author/", "auth/user/",
    ):
        assert client.get(f"/admin/{page}").status_code == 200, page
    made = client.post("/admin/shop/author/add/", {"name": "by admin", "born": "2001-01-01"})
    assert made.status_code == 302 and Author.objects.filter(name="by admin").exists()
    first = Book.objects.first().id
    client.post(f"/admin/shop/book/{first}/delete/", {"post": "yes"})
    assert not Book.objects.filter(id=first).exists()
    ann.delete()
    assert Book.objects.count() == 5
    call_command("migrate", "shop", "zero", verbosity=0)
    print("ok")


if __name__ == "__main__":
    main()
