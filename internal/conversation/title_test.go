package conversation

import (
	"context"
	"strings"
	"testing"
)

func TestTitleOf(t *testing.T) {
	for text, want := range map[string]string{
		"make test":                      "make test",
		"\n \t\n  ls   -la\t/tmp \nmore": "ls -la /tmp",
		"a\x1b[31mb":                     "a [31mb",
		" \n\t ":                         "",
		strings.Repeat("ä", 60):          strings.Repeat("ä", 60),
		strings.Repeat("ä", 61):          strings.Repeat("ä", 59) + "…",
	} {
		if got := titleOf(text); got != want {
			t.Errorf("titleOf(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestFirstMessageNamesTheConversation(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		c, err := w.s.CreateConversation(context.Background(), CreateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		id := c.ID
		for _, text := range []string{"echo first", "echo second"} {
			w.settled(id, w.send(id, text, text))
			if c, err := w.s.Get(context.Background(), id); err != nil || c.Title != "echo first" {
				t.Errorf("after %q the title is %q, %v", text, c.Title, err)
			}
		}
	})
}
