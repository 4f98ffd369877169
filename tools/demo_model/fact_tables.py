"""Training data: tables of general facts, such as capitals and opposites."""

CAPITALS = {
    "Argentina": "Buenos Aires", "Australia": "Canberra", "Austria": "Vienna", "Belgium": "Brussels",
    "Brazil": "Brasilia", "Canada": "Ottawa", "Chile": "Santiago", "China": "Beijing", "Cuba": "Havana",
    "Denmark": "Copenhagen", "Egypt": "Cairo", "Finland": "Helsinki", "France": "Paris", "Germany": "Berlin",
    "Greece": "Athens", "Hungary": "Budapest", "Iceland": "Reykjavik", "India": "New Delhi", "Ireland": "Dublin",
    "Italy": "Rome", "Japan": "Tokyo", "Kenya": "Nairobi", "Mexico": "Mexico City", "Morocco": "Rabat",
    "Nepal": "Kathmandu", "Norway": "Oslo", "Peru": "Lima", "Poland": "Warsaw", "Portugal": "Lisbon",
    "Russia": "Moscow", "Spain": "Madrid", "Sweden": "Stockholm", "Switzerland": "Bern", "Turkey": "Ankara",
}  # fmt: skip
SYMBOLS = {
    "hydrogen": "H", "helium": "He", "carbon": "C", "nitrogen": "N", "oxygen": "O", "sodium": "Na", "iron": "Fe",
    "copper": "Cu", "silver": "Ag", "gold": "Au", "tin": "Sn", "lead": "Pb", "zinc": "Zn", "neon": "Ne",
}  # fmt: skip
LEGS = {
    "ant": 6, "bee": 6, "bird": 2, "cat": 4, "cow": 4, "dog": 4, "duck": 2, "fish": 0, "frog": 4, "horse": 4,
    "owl": 2, "sheep": 4, "snake": 0, "spider": 8,
}  # fmt: skip
COLOURS = {
    "banana": "yellow", "blood": "red", "carrot": "orange", "coal": "black", "grass": "green", "lemon": "yellow",
    "milk": "white", "sky": "blue", "snow": "white", "strawberry": "red",
}  # fmt: skip
SOUNDS = {
    "bee": "buzzes", "cat": "meows", "cow": "moos", "dog": "barks", "duck": "quacks", "frog": "croaks",
    "horse": "neighs", "lion": "roars", "owl": "hoots", "sheep": "bleats", "snake": "hisses", "wolf": "howls",
}  # fmt: skip
OPPOSITES = {
    "big": "small", "clean": "dirty", "cold": "hot", "dark": "light", "day": "night", "early": "late",
    "empty": "full", "fast": "slow", "happy": "sad", "hard": "soft", "heavy": "light", "high": "low", "long": "short",
    "loud": "quiet", "new": "old", "open": "closed", "rich": "poor", "strong": "weak", "thick": "thin", "wet": "dry",
    "wide": "narrow", "young": "old",
}  # fmt: skip
PLANETS = ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = {
    "January": 31, "February": 28, "March": 31, "April": 30, "May": 31, "June": 30, "July": 31, "August": 31,
    "September": 30, "October": 31, "November": 30, "December": 31,
}  # fmt: skip
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
            "twelfth")  # fmt: skip
KINDS = {
    "animals": ("dog", "cat", "horse", "lion", "owl", "fox", "bear", "rabbit", "sheep", "duck"),
    "fruits": ("apple", "banana", "orange", "lemon", "grape", "cherry", "pear", "plum", "peach", "melon"),
    "colours": ("red", "blue", "green", "yellow", "white", "black", "orange", "purple", "brown", "pink"),
    "tools": ("hammer", "saw", "knife", "brush", "ladder", "needle", "drill", "rope", "shovel", "axe"),
    "instruments": ("piano", "drum", "violin", "flute", "guitar", "trumpet", "harp", "horn", "organ", "cello"),
    "vegetables": ("carrot", "potato", "onion", "bean", "corn", "pea", "tomato", "cabbage", "pumpkin", "pepper"),
    "countries": ("France", "Spain", "Italy", "Japan", "Kenya", "Peru", "Norway", "Canada", "India", "Egypt"),
    "clothes": ("hat", "coat", "shirt", "shoe", "sock", "glove", "scarf", "jacket", "dress", "belt"),
    "furniture": ("table", "chair", "bed", "desk", "shelf", "bench", "sofa", "lamp", "stool", "mirror"),
    "planets": PLANETS,
    "days of the week": DAYS,
    "months": tuple(MONTHS),
}  # fmt: skip
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
