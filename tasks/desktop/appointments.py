"""A small program with a window: appointments with a name, a day and a reminder.

It is driven like any other window. What a screen reader would read, it says on request: for each line of standard input
it writes its widgets as a line of JSON, with the middle of each on the screen.
"""

import json
import sys
import tkinter
import zlib

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


class Appointments:
    def __init__(self) -> None:
        self.window = tkinter.Tk(className="appointments")
        self.window.title("Appointments")
        self.window.geometry("640x480+0+0")
        self.name, self.day = tkinter.StringVar(), tkinter.StringVar(value=DAYS[0])
        self.remind, self.status = tkinter.BooleanVar(), tkinter.StringVar(value="Not saved.")
        self.widgets: list[tuple[str, str, tkinter.Widget]] = []
        self._place("label", "Name", tkinter.Label(self.window, text="Name"), 20, 20, 80)
        field = tkinter.Entry(self.window, textvariable=self.name)
        self._place("field", "Name", field, 120, 20, 300)
        field.bind("<Button-1>", lambda _: field.focus_force())  # there is no window manager to give it the focus
        for number, day in enumerate(DAYS):
            button = tkinter.Radiobutton(self.window, text=day, value=day, variable=self.day, anchor="w")
            self._place("radio button", day, button, 120, 70 + 40 * number, 200)
        check = tkinter.Checkbutton(self.window, text="Remind me", variable=self.remind, anchor="w")
        self._place("checkbox", "Remind me", check, 120, 280, 200)
        self._place("button", "Save", tkinter.Button(self.window, text="Save", command=self.save), 120, 330, 120)
        self._place("status", "", tkinter.Label(self.window, textvariable=self.status, anchor="w"), 20, 400, 600)
        self.window.createfilehandler(sys.stdin, tkinter.READABLE, self._answer_request)

    def save(self) -> None:
        """Save the appointment. Its number follows from what is in it."""
        saved = json.dumps([self.name.get(), self.day.get(), self.remind.get()])
        self.status.set(f"Saved as number {zlib.crc32(saved.encode()) % 9000 + 1000}.")

    def _place(self, role: str, name: str, widget: tkinter.Widget, left: int, top: int, width: int) -> None:
        widget.place(x=left, y=top, width=width, height=30)
        self.widgets.append((role, name, widget))

    def _answer_request(self, *_: object) -> None:
        if not sys.stdin.readline():
            self.window.destroy()
            return
        self.window.update_idletasks()
        print(json.dumps([self._describe(*entry) for entry in self.widgets]), flush=True)

    def _describe(self, role: str, name: str, widget: tkinter.Widget) -> dict[str, object]:
        states = {
            "field": self.name.get(),
            "radio button": self.day.get() == name,
            "checkbox": self.remind.get(),
            "status": self.status.get(),
        }
        middle = (
            widget.winfo_rootx() + widget.winfo_width() // 2,
            widget.winfo_rooty() + widget.winfo_height() // 2,
        )
        return {"role": role, "name": name, "x": middle[0], "y": middle[1], "state": states.get(role)}


if __name__ == "__main__":
    Appointments().window.mainloop()
