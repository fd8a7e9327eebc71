package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEnvFile(t *testing.T) {
	t.Setenv("OPEN", "to all")
	t.Setenv("EXECD_ACCESS_TOKEN", "secret")
	t.Setenv(EnvFileVariable, "/here")
	type vars = map[string]string
	for name, tc := range map[string]struct {
		text string
		want vars
	}{
		"nothing":                   {"", vars{}},
		"plain":                     {"A=1\n B = two words \r\nC=\nnothing\n=x\n #D=1\n", vars{"A": "1", "B": "two words", "C": ""}},
		"the last one counts":       {"A=1\nA='2'\nA=\"3\"", vars{"A": "3"}},
		"variables":                 {"A=$OPEN-${OPEN}-$NONE-$EXECD_ACCESS_TOKEN-$EXECD_ENVS\n", vars{"A": "to all-to all---/here"}},
		"literal":                   {`A='a "b" $OPEN \n # c ' ` + "\nB=1", vars{"A": `a "b" $OPEN \n # c `, "B": "1"}},
		"literal lines":             {"A='1\nB=2\n\n'\nC=3", vars{"A": "1\nB=2\n\n", "C": "3"}},
		"escapes":                   {`A="a\n\r\t\\\"'\$OPEN \x"` + "\nB=1", vars{"A": "a\n\r\t\\\"'\\to all \\x", "B": "1"}},
		"several lines":             {"A=\"1\n2\"\nB=1", vars{"A": "1\n2", "B": "1"}},
		"empty":                     {"A=''\nB=\"\"", vars{"A": "", "B": ""}},
		"an equals sign":            {"A='=' \nB==\nC=\"a=b\"", vars{"A": "=", "B": "=", "C": "a=b"}},
		"a quote inside":            {`A=it's "so"`, vars{"A": `it's "so"`}},
		"not closed":                {"A='1\nB=\"2\nC=3\n", vars{"C": "3"}},
		"closed too early":          {"A='1' 2\nB=\"1\"2\nC=3", vars{"C": "3"}},
		"a NUL":                     {"A=1\x00\nB='\x00'\nC\x00=1\nD=1", vars{"D": "1"}},
		"longer than possible":      {"A=" + strings.Repeat("x", 128<<10) + "\nB=1", vars{"B": "1"}},
		"what the daemon is told":   {"EXECD_ACCESS_TOKEN=1\nEXECD_ENVS=/there\nJUPYTER_TOKEN=1\nB=1", vars{"B": "1"}},
		"an escape at the very end": {`A="\`, vars{}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "envs")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := EnvFile(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestEnvFileRefused(t *testing.T) {
	dir := t.TempDir()
	if got, err := EnvFile(t.Context(), filepath.Join(dir, "missing")); got != nil || err != nil {
		t.Errorf("a missing file: %v, %v", got, err)
	}
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, make([]byte, maxEnvFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LONG", strings.Repeat("x", 100<<10))
	grown := filepath.Join(dir, "grown")
	if err := os.WriteFile(grown, []byte(strings.Repeat("A=$LONG\n", 11)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, large, grown, "/dev/zero"} {
		if got, err := EnvFile(t.Context(), path); err == nil {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func FuzzEnvFile(f *testing.F) {
	f.Add("A='1'\nB=\"\\n$X\"\nC=2")
	f.Fuzz(func(t *testing.T, text string) {
		vars, _ := parseEnv(text)
		for name, value := range vars {
			if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
				t.Errorf("%q=%q", name, value)
			}
		}
	})
}
