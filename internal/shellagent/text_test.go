package shellagent

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestText(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"plain", "a\nb", "a\nb"},
		{"UTF-8", "é€😀\n", "é€😀\n"},
		{"invalid bytes", "a\xff\xfeb\xc3", "a\uFFFD\uFFFDb\uFFFD"},
		{"half a character before a line end", "\xe2\x82\n", "\uFFFD\uFFFD\n"},
		{"NUL", "a\x00b", "a\uFFFDb"},
		{"CR LF", "a\r\nb\r\r\n", "a\nb\n"},
		{"progress", " 10%\r 20%\r100%\ndone\n", "100%\ndone\n"},
		{"a shorter version leaves the end of the longer one", "longer\rab\n", "longer\rab\n"},
		{"a shorter version that erases", "longer\rab\x1b[K\n", "ab\x1b[K\n"},
		{"CR at the end", "ab\r", "ab\r"},
		{"only CR", "\r\r", "\r"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var whole text
			whole.write([]byte(c.in))
			if diff := cmp.Diff(c.want, whole.take(1<<20, true)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			var bytewise text
			for i := range len(c.in) {
				bytewise.write([]byte{c.in[i]})
			}
			if diff := cmp.Diff(c.want, bytewise.take(1<<20, true)); diff != "" {
				t.Errorf("written byte by byte (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTextTaken takes after every write: the pieces are valid, and a shown line
// is rewritten by a CR.
func TestTextTaken(t *testing.T) {
	for _, c := range []struct{ in, want []string }{
		{[]string{"a\xc3", "\xa9", "\n"}, []string{"a", "é", "\n"}},
		{[]string{"a\r", "\nb"}, []string{"a", "\nb"}},
		{[]string{"10%", "\r20%\r30%", "\r40%\n", "x\ry"}, []string{"10%", "\r30%", "\r40%\n", "y"}},
	} {
		var x text
		var got []string
		for _, p := range c.in {
			x.write([]byte(p))
			got = append(got, x.take(1<<20, false))
		}
		// What is shown of the first case comes a character later.
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.in, diff)
		}
	}
}

func TestTextTakeLimit(t *testing.T) {
	var x text
	in := strings.Repeat("é€\n", 100)
	x.write([]byte(in))
	var got strings.Builder
	for {
		s := x.take(7, true)
		if s == "" {
			break
		}
		if len(s) > 7 || !utf8.ValidString(s) {
			t.Fatalf("took %q", s)
		}
		got.WriteString(s)
	}
	if got.String() != in {
		t.Errorf("the pieces don't make the whole: %q", got.String())
	}
}

func TestOutputBounds(t *testing.T) {
	var o output
	var n int64
	for i := range 200_000 {
		l := fmt.Appendf(nil, "line %d of a very long output that never seems to end\n", i)
		n += int64(len(l))
		o.write(l)
		if held := len(o.text.out) + cap(o.tail); held > headLimit+4*tailLimit {
			t.Fatalf("%d bytes are held", held)
		}
	}
	o.finish()
	got := o.take(64<<20, true)
	if len(got) > headLimit+2*tailLimit {
		t.Errorf("%d bytes of %d are shown", len(got), n)
	}
	if !strings.HasPrefix(got, "line 0 of") || !strings.HasSuffix(got, "line 199999 of a very long output that never seems to end\n") {
		t.Errorf("the beginning or the end is missing")
	}
	head, rest, ok := strings.Cut(got, "[more than 4 MiB of output: the rest is left out, except for its end]\n[")
	number, tail, ok2 := strings.Cut(rest, " bytes left out]\n")
	if !ok || !ok2 {
		t.Fatalf("the notices are missing")
	}
	if want := fmt.Sprint(n - int64(len(head)) - int64(len(tail))); number != want {
		t.Errorf("%s bytes are said to be left out, it were %s", number, want)
	}
	if !strings.HasPrefix(tail, "line ") {
		t.Errorf("the end begins in the middle of a line: %.40q", tail)
	}
}

// TestOutputProgress: a progress bar is as long as what can be seen of it.
func TestOutputProgress(t *testing.T) {
	var o output
	for i := range 2_000_000 {
		o.write(fmt.Appendf(nil, "\r%7d", i))
	}
	o.write([]byte("\nok\n"))
	if got := o.take(64<<20, true); got != "1999999\nok\n" && len(got) > 100 {
		t.Errorf("%d bytes are shown: %.80q", len(got), got)
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("a\r\nb\xff\x00\xe2\x82\xac 10%\r20%\n"), 3)
	f.Fuzz(func(t *testing.T, in []byte, size int) {
		size = 1 + size&15
		var x text
		var got bytes.Buffer
		for p := range chunks(in, size) {
			x.write(p)
			s := x.take(size*2, false)
			if !utf8.ValidString(s) || len(s) > size*2 && size > 3 {
				t.Fatalf("took %q", s)
			}
			got.WriteString(s)
		}
		got.WriteString(x.take(1<<30, true))
		if bytes.IndexByte(got.Bytes(), 0) >= 0 || len(x.out)+len(x.rest) > 0 {
			t.Fatal("something is left")
		}
		if bytes.Count(got.Bytes(), []byte("\n")) != bytes.Count(in, []byte("\n")) {
			t.Fatal("the number of lines changed")
		}
	})
}

func chunks(in []byte, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(in) > 0 {
			n := min(size, len(in))
			if !yield(in[:n]) {
				return
			}
			in = in[n:]
		}
	}
}
