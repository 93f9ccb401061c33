module example.invalid/words

go 1.19
