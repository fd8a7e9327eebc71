package child

import "testing"

func TestParseStat(t *testing.T) {
	const rest = " S 10 20 30 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 10"
	for text, want := range map[string]stat{
		"7 (sh)" + rest:             {process: process{7, 4711}, ppid: 10, session: 30, flags: 4194560},
		"7 (a) Z 1 2 3 (b))" + rest: {process: process{7, 4711}, ppid: 10, session: 30, flags: 4194560},
		"7 (sh) Z 10 20 30 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 4711":  {process: process{7, 4711}, ppid: 10, session: 30, flags: 4, ended: true},
		"7 (sh) Z 10 20 30 0 -1 4 1 2 3 4 5 6 7 8 20 0 12 0 4711": {process: process{7, 4711}, ppid: 10, session: 30, flags: 4},
	} {
		if got, ok := parseStat(7, []byte(text)); !ok || got != want {
			t.Errorf("%s: %+v, %v, want %+v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "7", "7 (sh)", "7 (sh) S 1", "7 (sh) S x 20 30 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 5"} {
		if got, ok := parseStat(7, []byte(text)); ok {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestMarked(t *testing.T) {
	for env, want := range map[string]bool{
		"":                               false,
		"ASTRABOX_RUN=abc":               true,
		"ASTRABOX_RUN=abc\x00":           true,
		"A=1\x00ASTRABOX_RUN=abc\x00B=2": true,
		"ASTRABOX_RUN=abcd\x00":          false,
		"XASTRABOX_RUN=abc\x00":          false,
		"A=ASTRABOX_RUN=abc\x00":         false,
		"A=1\x00ASTRABOX_RUN=ab":         false,
	} {
		if got := (Tree{Mark: "abc"}).marked(marks([]byte(env))); got != want {
			t.Errorf("%q: %v", env, got)
		}
	}
	several := Tree{Mark: "abc.", Several: true}
	for env, want := range map[string]bool{"A=1\x00ASTRABOX_RUN=abc.1\x00": true, "ASTRABOX_RUN=abc": false, "A=ASTRABOX_RUN=abc.1": false} {
		if got := several.marked(marks([]byte(env))); got != want {
			t.Errorf("several, %q: %v", env, got)
		}
	}
}
