from django.db import models


class Author(models.Model):
    name = models.CharField(max_length=100, unique=True)
    born = models.DateField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["born", "-name"], name="author_born")]


class Tag(models.Model):
    word = models.SlugField(db_index=True)


class Book(models.Model):
    title = models.CharField(max_length=200)
    author = models.ForeignKey(Author, on_delete=models.CASCADE, related_name="books")
    price = models.DecimalField(max_digits=8, decimal_places=2)
    data = models.JSONField(default=dict)
    added = models.DateTimeField(auto_now_add=True)
    public_id = models.UUIDField(null=True)
    length = models.DurationField(null=True)
    flag = models.BooleanField(default=False)
    tags = models.ManyToManyField(Tag)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(price__gte=0), name="price_positive"),
            models.UniqueConstraint(fields=["title", "author"], name="one_title"),
            models.UniqueConstraint(
                fields=["public_id"], condition=models.Q(flag=True), name="one_flagged"
            ),
        ]
