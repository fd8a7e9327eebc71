package script

import "regexp"

// Template is one kind of step.
type Template struct {
	Name string
	Doc  string // what it does, and what it prints
	Form string // the shell text; «kind» stands for an argument

	text  []string
	kinds []kind
	form  *regexp.Regexp
}

// Templates gives all templates.
func Templates() []Template { return append([]Template(nil), templates...) }

const nothing = "nothing"

var templates = []Template{
	{Name: nothing, Form: `:`,
		Doc: "Does nothing, with status 0."},
	// Output.
	{Name: "emit", Form: `printf «bytes»`,
		Doc: "Writes exactly these bytes to stdout."},
	{Name: "emit-err", Form: `printf «bytes» >&2`,
		Doc: "Writes exactly these bytes to stderr."},
	{Name: "big", Form: `yes 0123456789abcde | head -c «int»`,
		Doc: "Writes so many bytes to stdout: the line 0123456789abcde over and over."},
	{Name: "big-err", Form: `yes 0123456789abcde | head -c «int» >&2`,
		Doc: "Writes what big writes to stderr."},
	{Name: "lines", Form: `seq «int»`,
		Doc: "Writes the numbers from 1, one a line."},
	{Name: "tick", Form: `i=0; while [ $i -lt «int» ]; do i=$((i+1)); echo $i; sleep «secs»; done`,
		Doc: "Writes the numbers from 1, one a line, and sleeps after each."},
	// Endings.
	{Name: "exit", Form: `exit «int»`,
		Doc: "Ends the line with this status."},
	{Name: "die", Form: `kill -s «signal» $$`,
		Doc: "Kills the shell itself with the signal."},
	{Name: "ignore", Form: `trap '' «signal»`,
		Doc: "Ignores the signal from now on, in what is started too."},
	{Name: "catch", Form: `trap 'echo caught; exit «int»' «signal»`,
		Doc: "On the signal writes caught and exits with the status."},
	{Name: "sleep", Form: `sleep «secs»`,
		Doc: "Sleeps so long."},
	// Input and terminal.
	{Name: "cat", Form: `cat`,
		Doc: "Copies stdin to stdout until its end."},
	{Name: "count", Form: `wc -c`,
		Doc: "Reads stdin to its end and writes how many bytes it had; blanks may precede the number."},
	{Name: "read-line", Form: `IFS= read -r line; printf '<%s>\n' "$line"`,
		Doc: "Reads a line from stdin and writes it in angle brackets."},
	{Name: "tty-size", Form: `stty size`,
		Doc: "Writes rows and columns of the terminal; fails without one."},
	{Name: "is-tty", Form: `if [ -t 0 ] && [ -t 1 ]; then echo tty; else echo none; fi`,
		Doc: "Writes tty when stdin and stdout are a terminal, else none."},
	// Surroundings.
	{Name: "env", Form: `printenv «name»`,
		Doc: "Writes the variable's value and a newline; status 1 where it isn't set."},
	{Name: "export", Form: `export «name»=«path»`,
		Doc: "Gives the variable a value, for what the shell starts too."},
	{Name: "pwd", Form: `pwd`,
		Doc: "Writes the working directory."},
	{Name: "cd", Form: `cd -- «path»`,
		Doc: "Makes the directory the working one; fails where there is none."},
	{Name: "user", Form: `id -un`,
		Doc: "Writes the name of the account."},
	{Name: "group", Form: `id -gn`,
		Doc: "Writes the name of the account's group."},
	// Files, as a program of the sandbox sees them.
	{Name: "cat-file", Form: `cat -- «path»`,
		Doc: "Writes the file's content; status 1 where there is none."},
	{Name: "write", Form: `printf «bytes» >«path»`,
		Doc: "Makes the file's content these bytes, in place."},
	{Name: "append", Form: `printf «bytes» >>«path»`,
		Doc: "Appends these bytes to the file."},
	{Name: "stat", Form: `stat -c '%f %s %U %G' -- «path»`,
		Doc: "Writes st_mode in hexadecimal, size, owner and group, without following a link."},
	{Name: "watch", Form: `until [ -e «path» ]; do stat -c '%f %s %U %G' -- «path»; done`,
		Doc: "Until the first path exists, writes what stat writes of the second, as often as it can."},
	{Name: "list", Form: `ls -1A -- «path»`,
		Doc: "Writes the names in a directory, hidden ones too, one a line."},
	{Name: "fill", Form: `cd «path» && i=0 && while [ $i -lt «int» ]; do i=$((i+1)); : >$i; done; cd - >/dev/null`,
		Doc: "Makes so many empty files in the directory, named by the numbers from 1."},
	{Name: "link", Form: `ln -s -- «path» «path»`,
		Doc: "Makes the second path a symlink whose target is the first."},
	{Name: "fifo", Form: `mkfifo -- «path»`,
		Doc: "Makes a named pipe."},
	{Name: "wait-for", Form: `until [ -e «path» ]; do sleep 0.02; done`,
		Doc: "Waits until the path exists."},
	{Name: "churn", Form: `p=«path»; until [ -e «path» ]; do : >"$p"; rm -f -- "$p"; done`,
		Doc: "Until the second path exists, makes the first one a file and removes it, over and over."},
	{Name: "flip", Form: `p=«path» t=«path»; until [ -e «path» ]; do rm -rf -- "$p"; ln -s -- "$t" "$p"; rm -f -- "$p"; mkdir -- "$p"; done`,
		Doc: "Until the third path exists, makes the first one in turn a directory and a symlink to the second."},
	// Processes.
	{Name: "self", Form: `echo $$ >«path»`,
		Doc: "Writes the shell's process id to the file."},
	{Name: "spawn", Form: `sleep «secs» >/dev/null 2>&1 & echo $! >«path»`,
		Doc: "Starts a sleeping child and writes its process id to the file."},
	{Name: "spawn-holding", Form: `sleep «secs» & echo $! >«path»`,
		Doc: "As spawn; the child keeps the shell's stdout and stderr open."},
	{Name: "spawn-orphan", Form: `(sleep «secs» >/dev/null 2>&1 & echo $! >«path»)`,
		Doc: "As spawn; the child's parent ends at once."},
	{Name: "spawn-deaf", Form: `(trap '' HUP INT QUIT TERM; exec sleep «secs») >/dev/null 2>&1 & echo $! >«path»`,
		Doc: "As spawn; the child ignores SIGHUP, SIGINT, SIGQUIT and SIGTERM."},
	{Name: "spawn-setsid", Form: `setsid sleep «secs» >/dev/null 2>&1 & echo $! >«path»`,
		Doc: "As spawn; the child is in a session and process group of its own."},
	{Name: "spawn-bare", Form: `setsid env -i sleep «secs» >/dev/null 2>&1 & echo $! >«path»`,
		Doc: "As spawn-setsid; the child has no environment either."},
	{Name: "alive", Form: `if grep -qs '^State:[[:space:]]*[^ZX[:space:]]' /proc/"$(cat -- «path»)"/status; then echo alive; else echo dead; fi`,
		Doc: "Writes alive when the process whose id the file holds runs, else dead."},
	{Name: "kill", Form: `kill -s «signal» "$(cat -- «path»)"`,
		Doc: "Sends the signal to the process whose id the file holds; status 1 where there is none."},
}

var byName = index()

func index() map[string]*Template {
	m := make(map[string]*Template, len(templates))
	for i := range templates {
		t := &templates[i]
		t.text, t.kinds, t.form = compile(t.Form)
		m[t.Name] = t
	}
	return m
}
